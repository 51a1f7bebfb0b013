"""Times, sizes and rates: typed in code, `20ms` and `100mbit` for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NewType

from covey.errors import PlanError

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", int)
BytesPerSecond = NewType("BytesPerSecond", float)

AT_ONCE = Seconds(0.0)

_QUANTITY = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*(?P<unit>[A-Za-zµ/]*)\s*")
_RATE = re.compile(r"(?P<prefix>[kKmMgGtT]?)(?P<binary>i?)(?P<what>bit(?:/s)?|bps|B/s)")
_SIZE = re.compile(r"(?P<prefix>[kKmMgGtT]?)(?P<binary>i?)(?P<what>B)")

_DURATIONS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_POWERS: Mapping[str, int] = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> Seconds:
    """Seconds from `20ms`, `60s`, `5m` or `1h`."""
    number, unit = _quantity(text, "duration", "20ms, 60s, 5m or 1h")
    if unit in _DURATIONS and math.isfinite(seconds := number * _DURATIONS[unit]):
        return Seconds(seconds)
    if unit == "" and number == 0:
        return Seconds(0.0)
    raise _unreadable(text, "duration", "20ms, 60s, 5m or 1h")


def parse_rate(text: str) -> BytesPerSecond:
    """Bytes per second from `100mbit`, `1gbit` or `10MB/s`."""
    examples = "100mbit, 1gbit or 10MB/s"
    number, unit = _quantity(text, "rate", examples)
    match = _RATE.fullmatch(unit)
    rate = number * _scale(match) / (1 if match["what"] == "B/s" else 8) if match else 0.0
    if not 0 < rate < math.inf:
        raise _unreadable(text, "rate", examples)
    return BytesPerSecond(rate)


def parse_size(text: str) -> Bytes:
    """Bytes from `512B`, `100kB` or `4MiB`."""
    number, unit = _quantity(text, "size", "512B, 100kB or 4MiB")
    match = _SIZE.fullmatch(unit)
    if match is None or math.isinf(size := number * _scale(match)):
        raise _unreadable(text, "size", "512B, 100kB or 4MiB")
    return Bytes(round(size))


def format_bytes(size: float) -> str:
    """A size for people, such as `1.5 MB`."""
    return _shown(size, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_room(size: float) -> str:
    """A size for people that is at least as large, so that what is as large as shown has room for it."""
    if not 0 < size < math.inf:
        return format_bytes(size)
    digit = 10.0 ** (math.floor(math.log10(size)) - 2)
    return format_bytes(math.ceil(size / digit) * digit)


def format_rate(rate: float) -> str:
    """A rate for people, in bits as networks are sold, such as `100 Mbit/s`."""
    return _shown(rate * 8, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_duration(seconds: float) -> str:
    """A time for people, such as `12.3 ms`, `4.5 s`, `2m 05s` or `1h 30m`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if 0 < seconds < 0.9995:
        return _shown(seconds * 1e9, 1000, ("ns", "µs", "ms"))
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def _quantity(text: str, what: str, examples: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(str(text))  # from Python a bare number may come
    if match is None or math.isinf(float(match["number"])):
        raise _unreadable(text, what, examples)
    return float(match["number"]), match["unit"]


def _scale(match: re.Match[str]) -> float:
    return float((1024 if match["binary"] else 1000) ** _POWERS[match["prefix"].lower()])


def _unreadable(text: str, what: str, examples: str) -> PlanError:
    return PlanError(f"cannot read the {what} {text!r}; write for example {examples}")


def _shown(value: float, step: int, units: tuple[str, ...]) -> str:
    """Three digits and the unit that keeps them short."""
    for unit in units[:-1]:
        if abs(value) < step - 0.5:  # 999.6 would be shown as 1000
            return f"{value:.3g} {unit}"
        value /= step
    return f"{value:.3g} {units[-1]}" if abs(value) < step - 0.5 else f"{value:.0f} {units[-1]}"
