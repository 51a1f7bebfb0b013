"""How long did a step take? From a recording of a run, real or in virtual time."""

from __future__ import annotations

from covey.observe.recording import Recording

WARM = 4  # batches of each worker that do not count: connections are made, pages are touched


def recorded_step(recording: Recording) -> float:
    """Seconds of a step of the mean worker, from one batch to its next; 0 where none was recorded.

    What slow workers do alone, after the fastest has ended, does not count.
    """
    begins: dict[str, list[float]] = {}
    for span in recording.spans:
        if not span.what:
            begins.setdefault(span.who, []).append(span.begin)
    timed = [times[min(WARM, len(times) - 2) :] for times in begins.values() if len(times) > 1]
    end = min((times[-1] for times in timed), default=0.0)
    rates = []
    for times in timed:
        counted = [time for time in times if time <= end]
        counted = counted if len(counted) > 1 else times
        rates.append((len(counted) - 1) / (counted[-1] - counted[0]))
    return len(rates) / sum(rates) if rates else 0.0
