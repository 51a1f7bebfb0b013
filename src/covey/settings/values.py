"""An optimizer's settings as a value: read from its parameter groups, and sent to other roles."""

from __future__ import annotations

from math import inf, isnan
from typing import Any, NamedTuple

import msgspec
from torch import Tensor
from torch.optim import Optimizer

from covey.errors import PlanError, WireError
from covey.message import Message

Number = bool | int | float
Value = bool | int | float | str | tuple[Number, ...] | None
Group = dict[str, Value]
Row = tuple[int, str, bool | int | float | str | list[Number] | None]
"""The number of a group, a key, and its value; on a wire a tuple is a list."""

NOT_SETTINGS = ("params", "param_names")
MOST_GROUPS, MOST_KEYS, MOST_OPTIMIZERS = 4096, 64, 64
LONGEST = 256  # characters of a word, numbers of a list
LARGEST = 1 << 62
MOST_PARAMETERS = 1 << 20
MOST_BYTES = 256 << 10
SIMPLE = (bool, int, float, str)
ROUNDING = 1e-12  # by which a schedule that ends at 0 may miss it


class Settings(NamedTuple):
    """Those of all groups, and which of several optimizers step."""

    groups: tuple[Group, ...]
    active: tuple[int, ...] = (0,)
    clip: float | None = None  # the norm that the gradient of the step is shortened to
    absent: tuple[int, ...] = ()  # parameters without a gradient, by their places in the model, which the step skips

    def plain(self) -> Settings:
        """Without the parameters that have no gradient, which may differ between workers."""
        return self._replace(absent=()) if self.absent else self


class SettingsUpdate(Message):
    """From this step on a sender's settings are these: all of them where it is `whole`, else what is new."""

    wire_name = "settings.changed"

    step: int
    whole: bool
    rows: list[Row]
    active: list[int]
    clip: float | None = None
    absent: tuple[int, ...] = ()

    counted = False


def read(optimizer: Optimizer, clip: float | None = None, absent: tuple[int, ...] = ()) -> Settings:
    """The settings of an optimizer as they are now; what cannot be told to other processes is refused."""
    groups = tuple(_read_group(number, group) for number, group in enumerate(optimizer.param_groups))
    return Settings(groups, tuple(getattr(optimizer, "active", (0,))), clip, absent)


def _read_group(number: int, group: dict[str, Any]) -> Group:
    return {
        key: value if value is None or type(value) is bool else _plain(number, key, value)
        for key, value in group.items()
        if key not in NOT_SETTINGS
    }


def _plain(number: int, key: str, value: Any) -> Value:
    """The value as numbers and words."""
    kind = type(value)
    if kind is float and value == value:  # NaN is not itself
        return value  # type: ignore[no-any-return]
    if kind is str and len(value) <= LONGEST:
        return value  # type: ignore[no-any-return]
    if kind in (tuple, list) and len(value) <= LONGEST:
        return tuple(_number(number, key, item) for item in value)
    return _number(number, key, value)


def lasting(group: dict[str, Any]) -> bool:
    """Whether the same objects are the same settings: nobody can change a number in place, but a tensor or a list."""
    return all(
        value is None or type(value) in SIMPLE or (type(value) is tuple and all(type(item) in SIMPLE for item in value))
        for key, value in group.items()
        if key not in NOT_SETTINGS
    )


def _number(number: int, key: str, value: Any) -> Number:
    single = value.numel() == 1 if isinstance(value, Tensor) else getattr(value, "ndim", 1) == 0  # or of numpy's
    if single:
        value = value.item()
    if isinstance(value, float) and isnan(value):
        raise PlanError(f"{key!r} of parameter group {number} is NaN: a number is needed")
    if isinstance(value, float) or (isinstance(value, int) and -LARGEST < value < LARGEST):
        return value
    raise PlanError(
        f"{key!r} of parameter group {number} is a {type(value).__name__}, which cannot be told to the roles that step "
        f"the optimizer: settings are numbers, strings, None, or lists of up to {LONGEST} numbers"
    )


def check_rate(what: str, rate: float) -> None:
    """Refuse a learning rate, or a factor on one, that is NaN, infinite or negative, by name."""
    if not -ROUNDING <= rate < inf:
        raise PlanError(f"{what} is {rate:g}: a number from 0 up is needed")


def check_rates(optimizer: Optimizer) -> None:
    """Refuse an optimizer with such a learning rate."""
    for number, group in enumerate(optimizer.param_groups):
        if isinstance(rate := group.get("lr"), int | float | Tensor):
            check_rate(f"the learning rate of parameter group {number}", float(rate))


def changed(step: int, now: Settings, before: Settings | None) -> SettingsUpdate:
    """How to tell somebody who knows those of `before`."""
    rows: list[Row] = []
    for number, group in enumerate(now.groups):
        known = before.groups[number] if before else {}
        for key, value in group.items():
            if key not in known or known[key] != value:
                rows.append((number, key, list(value) if isinstance(value, tuple) else value))
    return SettingsUpdate(step, before is None, rows, list(now.active), now.clip, now.absent)


def size_of(word: SettingsUpdate) -> int:
    """Bytes on a wire."""
    return len(msgspec.msgpack.encode(word))


def check_size(settings: Settings) -> None:
    """Refuse what no role would take."""
    keys = max((len(group) for group in settings.groups), default=0)
    if len(settings.groups) > MOST_GROUPS or keys > MOST_KEYS or size_of(changed(0, settings, None)) > MOST_BYTES:
        raise PlanError(
            f"the optimizer's settings are too many to be told: up to {MOST_GROUPS} parameter groups, {MOST_KEYS} "
            f"settings of each, and {MOST_BYTES >> 10} KiB in all"
        )


def after(
    word: SettingsUpdate, before: Settings | None, groups: int, optimizers: int, parameters: int = MOST_PARAMETERS
) -> Settings:  # fmt: skip
    """The settings that a sender tells; refused where they are not of an optimizer such as this role's own."""
    if before is None and not word.whole:
        raise WireError(f"{word.sender} sent a change of its settings before the settings")
    found: list[Group] = [{} for _ in range(groups)] if word.whole or before is None else list(before.groups)
    mine: set[int] = set()
    for number, key, value in word.rows:
        if not 0 <= number < groups:
            raise WireError(f"{word.sender} sent settings of a parameter group {number}; the optimizer has {groups}")
        if number not in mine:  # those of earlier steps stay as they are
            found[number] = dict(found[number])
            mine.add(number)
        long = len(key) > LONGEST or (isinstance(value, str | list) and len(value) > LONGEST)
        if long or key in NOT_SETTINGS:
            raise WireError(f"{word.sender} sent a setting {key[:40]!r} that cannot be one")
        found[number][key] = tuple(value) if isinstance(value, list) else value
        if len(found[number]) > MOST_KEYS:
            raise WireError(f"{word.sender} sent more than {MOST_KEYS} settings of parameter group {number}")
    if not set(word.active) <= set(range(optimizers)) or len(word.active) > optimizers:
        raise WireError(f"{word.sender} sent numbers of optimizers that do not exist")
    if word.clip is not None and not word.clip > 0:
        raise WireError(f"{word.sender} sent a clip norm of {word.clip}")
    if len(word.absent) > parameters or not all(0 <= place < parameters for place in word.absent):
        raise WireError(f"{word.sender} sent numbers of parameters that do not exist")
    return Settings(tuple(found), tuple(word.active), word.clip, word.absent)
