"""A role's part in loop settings: a worker sends those of its loop; roles that step look them up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.message import Address
from covey.settings.gradients import GradientPresence, common
from covey.settings.history import Agreement, History, SettingsChange
from covey.settings.values import (
    MOST_BYTES,
    Settings,
    SettingsUpdate,
    after,
    changed,
    check_rates,
    check_size,
    lasting,
    read,
    size_of,
)

KEPT = 64  # changes of a worker in a checkpoint
FIRST = 1 << 20
"""The priority of a change: no gradient overtakes the settings that it is to be stepped on with."""


class LoopSettings:
    """A worker reads them from its loop's optimizer and tells them on; who steps on a gradient looks them up."""

    def __init__(self, live: Optimizer, check: Callable[[Optimizer], None] | None = None) -> None:
        self.live = live  # the user's own, which the loop changes where there is a loop
        self.checks: list[Callable[[Optimizer], None]] = []  # what a strategy refuses
        self.first = read(live)
        self.sizes = [len(group["params"]) for group in live.param_groups]
        self.own = History()
        self.objects: Any = None  # in the groups when they were last read, where that says that they are the same
        self.stepped = False  # whether the user's own has been, in this process
        self.reached = 0  # steps of which the settings are known
        self.untold: deque[SettingsChange] = deque()  # to the launcher; two threads
        self.reported: tuple[int, Settings | None] = 0, None  # what it knows
        self.told: dict[Address, Settings] = {}
        self.heard: dict[Address, History] = {}
        self.agreement = Agreement()
        self.numbers: list[int] | None = None  # of the groups that this role's optimizer has some of; None: all
        self.applied: Settings | None = None
        self.gradients = GradientPresence()
        self.alike = False  # whether all workers must have gradients of the same parameters: nobody hears all of them
        self.pins: dict[str, str] = {}  # settings that the strategy makes, by its own words
        check_size(self.first)
        self.obey(check)

    def obey(self, check: Callable[[Optimizer], None] | None) -> None:
        """Refuse settings that the strategy cannot do, now and whenever they change."""
        if check:
            check(self.live)
            self.checks.insert(0, check)  # a check may mend what it could refuse, so the latest has the first word

    def pin(self, keys: Iterable[str], why: str) -> None:
        """These settings are the strategy's to make: a loop that changes one is refused."""
        self.pins |= dict.fromkeys(keys, why)

    # -- a worker: what its loop wants

    def note(self, step: int, clip: float | None = None) -> None:
        """(On the compute thread, while the loop waits) These are the settings of this step's gradient."""
        sizes = [len(group["params"]) for group in self.live.param_groups]
        if sizes != self.sizes:
            raise PlanError(
                f"parameter groups changed after covey.join (sizes were {self.sizes}, now {sizes}): add all groups "
                "before covey.join; use lr=0 until one is needed"
            )
        groups = self.live.param_groups
        absent = self.gradients.absent(self.live)
        objects = [[*group.values()] for group in groups], getattr(self.live, "active", None), clip, absent
        if objects != self.objects:
            self.look(step, clip, absent)
            self.objects = objects if all(map(lasting, groups)) else None
        self.reached = step + 1

    def look(self, step: int, clip: float | None, absent: tuple[int, ...] = ()) -> None:
        """Read the settings; what is new must be what the strategy can do."""
        now, last = read(self.live, clip, absent), self.own.last
        if last is None or now != last.settings:
            check_size(now)
            check_rates(self.live)
            for check in self.checks:
                check(self.live)
            self.put(step, now)
            self.untold.append(SettingsChange(step, now))

    def put(self, step: int, settings: Settings) -> None:
        if self.own.last is None or self.own.last.settings is not settings:
            self.own.add(step, settings)

    def due(self, to: Address) -> SettingsUpdate | None:
        """What a peer must be told before it gets a gradient."""
        last = self.own.last
        if last is None or self.told.get(to) is last.settings:
            return None
        word = changed(last.step, last.settings, self.told.get(to))
        self.told[to] = last.settings
        return word

    def news(self) -> tuple[int, list[SettingsUpdate]]:
        """What the launcher, who compares all workers, has not heard: how far the loop is, and what it changed."""
        reached, before, found, size = self.reached, self.reported[1], list[SettingsUpdate](), 0
        while self.untold and size < MOST_BYTES:  # the rest next time
            step, settings = self.untold.popleft()
            settings = settings if self.alike else settings.plain()
            found.append(changed(step, settings, before))
            before, size = settings, size + size_of(found[-1])
        reached = self.untold[0].step if self.untold else reached
        self.reported = reached, before
        return reached, found

    # -- whoever steps

    def hear(self, word: SettingsUpdate) -> None:
        history = self.heard.setdefault(word.sender, History())
        before = history.last.settings if history.last else None
        optimizers = len(getattr(self.live, "parts", (self.live,)))
        places = len(self.gradients.places)
        history.add(word.step, after(word, before, len(self.first.groups), optimizers, places))

    def of(self, me: Address, gradients: Iterable[tuple[Address, int]]) -> Settings:
        """The settings for an update with the gradients of these workers and steps: those of the latest step.

        Workers that took the same step with other settings are refused. What has no gradient in any of them is skipped.
        """
        latest, found, absent = -1, None, None
        for who, step in gradients:
            history = self.own if who == me else self.heard.get(who)
            settings = history.at(step) if history else None
            assert settings is not None, f"{who} sent a gradient of step {step} before its settings"
            if who.role == "worker":  # others number what they send in their own way
                self.agreement.add(who, step, step + 1, settings.plain())
            absent = settings.absent if absent is None else common(absent, settings.absent)
            if step > latest:
                latest, found = step, settings
        assert found is not None and absent is not None, "an update has a gradient"
        return found if found.absent == absent else found._replace(absent=absent)

    def apply(self, optimizer: Optimizer, settings: Settings) -> None:
        """Let this role's optimizer have these settings."""
        if settings is self.applied:
            return
        self.applied = settings
        numbers = self.numbers if self.numbers is not None else range(len(settings.groups))
        for number, group in zip(numbers, optimizer.param_groups, strict=True):
            first = self.first.groups[number]
            for key, value in settings.groups[number].items():
                if key not in self.pins:
                    group[key] = value
                elif key not in first or first[key] != value:
                    raise PlanError(
                        f"the loop changed {key} of parameter group {number} from {first.get(key)!r} to {value!r}, but "
                        f"{self.pins[key]}"
                    )
        if hasattr(optimizer, "active"):
            optimizer.active = settings.active

    def absent(self, led: bool) -> tuple[int, ...]:
        """The places of parameters that a step now passes by; `led`: by what the loops have told, not by its own."""
        found = self.applied if led else self.own.last.settings if self.own.last else None
        return found.absent if found else ()

    # -- what is kept

    def state(self) -> dict[str, Any]:
        """What a restart needs: gradients that wait may be of any of these."""
        return {
            "own": _written(self.own), "heard": [[list(who), _written(history)] for who, history in self.heard.items()]
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self.own = _read_history(state["own"])
        self.untold.extend(self.own.changes[-1:])
        self.heard = {Address(*who): _read_history(kept) for who, kept in state["heard"]}
        self.applied = None


def _written(history: History) -> list[Any]:
    return [[step, list(s.groups), list(s.active), s.clip, list(s.absent)] for step, s in history.changes[-KEPT:]]


def _read_history(kept: list[Any]) -> History:
    return History(
        SettingsChange(step, Settings(tuple(groups), tuple(active), clip, *map(tuple, absent)))
        for step, groups, active, clip, *absent in kept  # older checkpoints have no `absent`
    )
