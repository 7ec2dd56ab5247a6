"""Holds what is known of a recorded time, and what must agree before a new one may be compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_gpukern.values.result import UNKNOWN_CHOICE, Choice
from pytest_gpukern.values.untrusted_json import own_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpukern.values.result import CaseInfo

_Session = TypeVar("_Session", bound="HasChoice")


@dataclass(frozen=True)
class Conditions:
    """Holds what must agree, besides scope, timer and cache, before two times may be compared.

    Attributes:
        problem_version: the version that the problem's author declared.
        measured_point: values of the axes as run.
        device_model: key of the device model, or of the CPU model for a host variant.
        simulated: whether the CUDA simulator ran it.
    """

    problem_version: int
    measured_point: Mapping[str, Any]
    device_model: str
    simulated: bool = False

    @classmethod
    def of(cls, case: CaseInfo, *, device_model: str, simulated: bool = False) -> Conditions:
        """Returns the conditions under which a case runs here and now."""
        return cls(case.problem_version, case.measured_point, device_model, simulated)


@dataclass(frozen=True)
class SessionTime:
    """Holds one recorded session's time of a case, with its conditions.

    Attributes:
        key: `scope/timer/cache` of the measurement.
        median_ns: median of the session's samples.
        low_ns: lower bound of the median's 95 % interval within the session.
        high_ns: upper bound.
        n: number of samples.
        conditions: what must agree with the new measurement's conditions.
        device: UUID of the device, or None for the host's processor.
        opening: whether its epoch was opened with this session; else it was appended.
        choice: what an autotuner or a library chose in it.
    """

    key: str
    median_ns: float
    low_ns: float
    high_ns: float
    n: int
    conditions: Conditions
    device: str | None = None
    opening: bool = False
    choice: Choice = UNKNOWN_CHOICE


class HasChoice(Protocol):
    """Describes a recorded session that knows what was chosen in it."""

    @property
    def choice(self) -> Choice:
        """Returns what was chosen."""


def of_one_choice(sessions: Sequence[_Session], choice: Choice, enough: int) -> Sequence[_Session]:
    """Returns the recorded sessions that a new one is compared with: they all chose the same.

    We take those that chose as the new one, or else those of the most frequent choice. They must be `enough`
    to gate. If no choice has enough sessions, an autotuner's choices are still kept apart. Launches that no
    autotuner chose are not: their grids may follow from the data.
    """
    groups: dict[Choice, list[_Session]] = {}
    for session in sessions:
        groups.setdefault(session.choice, []).append(session)
    if len(groups) < 2:
        return sessions
    ranked = sorted(groups, key=lambda each: (each == choice, len(groups[each])), reverse=True)
    usable = [each for each in ranked if len(groups[each]) >= enough]
    if usable or any(each.configurations for each in groups):
        return groups[(usable or ranked)[0]]
    return sessions


def difference(key: str, now: Conditions, sessions: Sequence[SessionTime]) -> str | None:
    """Returns the first condition in which a recorded session differs from now, with both values, or None."""
    if all(session.key == key and session.conditions == now for session in sessions):
        return None
    rows: list[tuple[str, list[object], object]] = [
        ("", [_where(s.conditions) for s in sessions], _where(now)),
        ("on ", [s.conditions.device_model for s in sessions], now.device_model),
        ("with problem version ", [s.conditions.problem_version for s in sessions], now.problem_version),
        ("at ", [_point(s.conditions.measured_point) for s in sessions], _point(now.measured_point)),
        ("as ", [s.key for s in sessions], key),
    ]
    for label, recorded, current in rows:
        others = [str(value) for value in dict.fromkeys(recorded) if value != current]
        if others:
            return f"recorded {label}{' and '.join(others)}, now {current}"
    return None


def _where(conditions: Conditions) -> str:
    return "in the simulator" if conditions.simulated else "on real hardware"


def _point(point: Mapping[str, Any]) -> str:
    """Returns a point in words, equal for values that JSON makes equal, such as a tuple and a list."""
    plain = own_json.loads(own_json.dumps(dict(point), default=_item, sort_keys=True))
    return " ".join(f"{k}={own_json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()) or "no axes"


def _item(value: object) -> object:
    return value.item() if hasattr(value, "item") else str(value)  # a NumPy scalar
