"""Holds what is known of a recorded time, and what must agree before a new one may be compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import UNKNOWN_CHOICE, CaseInfo, Choice, Measurement, Result


@dataclass(frozen=True)
class Conditions:
    """Holds what must agree, besides scope, timer and cache, before two times may be compared.

    Attributes:
        problem_version: the version that the problem's author declared.
        device_model: key of the device model, or of the CPU model for a host variant.
        simulated: whether the CUDA simulator ran it.
    """

    problem_version: int
    device_model: str
    simulated: bool = False


_UNKNOWN = Conditions(0, "")
_NO_SESSION = Result(CaseInfo("", "", 0, "", None, {}, {}, "", ""), "", Fingerprint(), simulated=False)

Text = Annotated[str, Meta(min_length=1)]


class SessionTime(Struct, frozen=True, gc=False):
    """Holds a time of a recorded session as the gate and findings compare it.

    Attributes:
        measurement: the time, as its record has it.
        device: UUID of the device; None for the host's processor, or where it is not known.
        opening: whether its epoch was opened with this session; else it was appended.
        choice: what an autotuner or a library chose in it.
        epoch: place of its epoch in the record, oldest first.
        session: all that the record holds of its session.
    """

    measurement: Measurement
    conditions: Conditions = _UNKNOWN
    device: str | None = None
    opening: bool = False
    choice: Choice = UNKNOWN_CHOICE
    epoch: int = 0
    session: Result = _NO_SESSION

    @classmethod
    def of(
        cls, result: Result, timed: Measurement, device_model: str, *, opening: bool = False, epoch: int = 0
    ) -> SessionTime:
        """Returns a time of a recorded session; `device_model` is of the record that holds it."""
        conditions = Conditions(result.case.problem_version, device_model)
        # A host variant's session names the machine's GPU too, which does not affect its time.
        on_device = result.fingerprint.device_model_key == device_model
        device = result.fingerprint.device_uuid if on_device else None
        choice = Choice.of(result.autotuned, result.kernels)
        return cls(timed, conditions, device, opening, choice, epoch, result)

    @property
    def key(self) -> str:
        return self.measurement.key

    @property
    def median_ns(self) -> float:
        return self.measurement.summary.median_ns


def of_one_choice(sessions: Sequence[SessionTime], choice: Choice, enough: int) -> Sequence[SessionTime]:
    """Returns the recorded sessions that a new one is compared with: they all chose the same.

    We take the sessions with the choice of the new one, or else with the most frequent choice. They must be
    `enough` to gate. If no choice has enough sessions, an autotuner's choices are still kept apart. Launches
    that no autotuner chose are not: their grids may follow from the data.
    """
    # Another choice is another kernel: a Triton softmax took 12 µs with 1 warp, 32 µs with 32 (H200).
    groups = grouped((session.choice, session) for session in sessions)
    ranked = sorted(groups, key=lambda chosen: (chosen == choice, len(groups[chosen])), reverse=True)
    usable = [chosen for chosen in ranked if len(groups[chosen]) >= enough]
    if usable or any(chosen.configurations for chosen in groups):
        return groups[(usable or ranked)[0]]
    return sessions


def difference(key: str, now: Conditions, sessions: Sequence[SessionTime]) -> str | None:
    """Returns the first condition in which a recorded session differs from now, with both values, or None."""
    then = [session.conditions for session in sessions]
    rows: tuple[tuple[str, list[object], object], ...] = (
        ("on ", [known.device_model for known in then], now.device_model),
        ("with problem version ", [known.problem_version for known in then], now.problem_version),
        ("as ", [session.key for session in sessions], key),
    )
    for label, recorded, current in rows:
        if others := [str(value) for value in dict.fromkeys(recorded) if value != current]:
            return f"recorded {label}{' and '.join(others)}, now {current}"
    return None
