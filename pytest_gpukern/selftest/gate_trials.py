"""Trials of the gate on recorded sessions: which are the record, which is judged, which confirm.

A trial takes five sessions for the record, one that is judged against it, and two fresh ones that confirm a
suspicion. In order of time the first five are the record, every later session is judged, and the two after it
confirm; after the last comes the first behind the record. Drawn trials choose other sessions for each part,
so that they overlap: they show how much depends on the choice, and are no further evidence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.values.result import Measurement, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.selftest.gate_cases import GateCase
    from pytest_gpukern.selftest.gate_recording import GateReading, GateRecording
    from pytest_gpukern.values.result import Verdict

RECORDED = 5
FRESH = 2
SEED = 20261120


@dataclass(frozen=True)
class Trial:
    """Which sessions take which part, by their numbers among those that found something.

    Attributes:
        record: of the epoch.
        candidate: is judged against it.
        fresh: confirm a suspicion.
    """

    record: tuple[int, ...]
    candidate: int
    fresh: tuple[int, ...]


def in_order(sessions: int) -> list[Trial]:
    """Every session behind the first five, judged against those."""
    later = list(range(RECORDED, sessions))
    if len(later) <= FRESH:
        return []
    record = tuple(range(RECORDED))
    doubled = later + later
    return [
        Trial(record, candidate, tuple(doubled[place + 1 : place + 1 + FRESH]))
        for place, candidate in enumerate(later)
    ]


def apart(trials: Sequence[Trial]) -> list[Trial]:
    """As many of the trials in order as share no session but those of the record."""
    chosen: list[Trial] = []
    used: set[int] = set()
    for trial in trials:
        own = {trial.candidate, *trial.fresh}
        if not own & used:
            chosen.append(trial)
            used |= own
    return chosen


def drawn(sessions: int, draws: int, seed: int = SEED) -> list[Trial]:
    """Trials of sessions drawn at random, each at most once a trial."""
    size = RECORDED + 1 + FRESH
    if sessions < size:
        return []
    rng = random.Random(seed)
    found = []
    for _ in range(draws):
        chosen = rng.sample(range(sessions), size)
        found.append(Trial(tuple(sorted(chosen[:RECORDED])), chosen[RECORDED], tuple(chosen[RECORDED + 1 :])))
    return found


@dataclass(frozen=True)
class Judged:
    """What the gate said of one case in one trial: at first, and for good."""

    screened: Verdict
    final: Verdict


class Court:
    """Has the gate judge cases of a recording.

    Args:
        recording: its sessions that found something are numbered from 0.
        slowdown: times are multiplied by it in the sessions that are judged, and clocks divided: 1/0.99 is
            what a clock that is 1 % lower makes of a kernel that computes.
        cycles: judges times multiplied by clocks, in units of the recording's first clock, instead of times.
    """

    def __init__(self, recording: GateRecording, *, slowdown: float = 1.0, cycles: bool = False) -> None:
        self.cases = {case.id: case for case in recording.cases}
        self._sessions = [session for session in recording.sessions if session.problem is None]
        self._default = [session.default_timer for session in self._sessions]
        self._readings: dict[tuple[str, int], GateReading] = {
            (reading.case, number): reading
            for number, session in enumerate(self._sessions)
            for reading in session.readings
        }
        self._device = recording.fingerprint.get("device_uuid")
        self._conditions = Conditions(1, {}, str(recording.fingerprint.get("device_name")))
        self._slowdown, self._cycles = slowdown, cycles
        self._times: dict[tuple[str, int], SessionTime] = {}
        self._shared: dict[tuple[int, ...], dict[str, SharedSpread]] = {}

    @property
    def sessions(self) -> int:
        """How many found something."""
        return len(self._sessions)

    def reading(self, case: str, session: int) -> GateReading | None:
        """What a session measured of a case."""
        return self._readings.get((case, session))

    def judge(self, case: GateCase, trial: Trial, threshold: float) -> Judged | None:
        """The verdict on a case against the record of its base; None where a session did not measure it.

        Args:
            case: what the candidate and the fresh sessions ran.
            trial: which those are.
            threshold: of the gate.
        """
        base = case.base or case.id
        wanted = [(base, number) for number in trial.record]
        wanted += [(case.id, number) for number in (trial.candidate, *trial.fresh)]
        if not all(self._usable(each) for each in wanted):
            return None
        record = [self._recorded(base, number) for number in trial.record]
        first = self._measured(case.id, trial.candidate)
        shared = self._spread(trial.record).get(spread_key(first.key))
        screened = judge(
            [first],
            record,
            conditions=self._conditions,
            threshold=threshold,
            jitter_ns=first.jitter_ns,
            device=self._device,
            shared=shared,
        )
        if not screened.suspected:
            return Judged(screened, screened)
        fresh = [self._measured(case.id, number) for number in trial.fresh]
        final = confirm(
            screened,
            fresh,
            record,
            conditions=self._conditions,
            threshold=threshold,
            jitter_ns=max(each.jitter_ns for each in fresh),
            device=self._device,
            shared=shared,
        )
        return Judged(screened, final)

    def _usable(self, place: tuple[str, int]) -> bool:
        reading = self._readings.get(place)
        return reading is not None and not (self._cycles and reading.sm_mhz is None)

    def _recorded(self, case: str, number: int) -> SessionTime:
        if (case, number) not in self._times:
            reading = self._readings[case, number]
            scale = self._scale(reading)
            self._times[case, number] = SessionTime(
                self._key(case, reading, number),
                reading.median_ns * scale,
                reading.low_ns * scale,
                reading.high_ns * scale,
                reading.samples,
                self._conditions,
                self._device,
            )
        return self._times[case, number]

    def _measured(self, case: str, number: int) -> Measurement:
        reading = self._readings[case, number]
        # Times a slowdown and clocks less by it: of their product nothing is left.
        scale = self._scale(reading) * (1.0 if self._cycles else self._slowdown)
        return Measurement(
            scope="kernel",
            timer=reading.timer or self._default[number],
            measures="",
            cache=self.cases[case].cache,
            samples_ns=(),
            iterations=1,
            summary=Summary(
                reading.median_ns * scale, reading.low_ns * scale, reading.high_ns * scale, reading.samples
            ),
            stopped="",
            jitter_ns=reading.jitter_ns,
            invalid=reading.invalid,
        )

    def _scale(self, reading: GateReading) -> float:
        return (reading.sm_mhz or 0.0) / self._first_mhz if self._cycles else 1.0

    @property
    def _first_mhz(self) -> float:
        clocks = (reading.sm_mhz for reading in self._readings.values() if reading.sm_mhz)
        return next(clocks, 1.0)

    def _key(self, case: str, reading: GateReading, number: int) -> str:
        return f"kernel/{reading.timer or self._default[number]}/{self.cases[case].cache}"

    def _spread(self, record: tuple[int, ...]) -> dict[str, SharedSpread]:
        """What the cases that stay as they are share in these sessions, as a baseline's would."""
        if record not in self._shared:
            self._shared[record] = shared_spread(
                [self._recorded(case.id, number) for number in record if (case.id, number) in self._readings]
                for case in self.cases.values()
                if not case.base
            )
        return self._shared[record]
