"""What the gate does with real sessions against what it promises; pure, computed from the recording alone.

Targets, on a device whose clock is steady:

- Cases that stayed as they are: in a thousand comparisons or more in order of time, none is SLOWER once
  confirmed, at the default threshold. Those are the neighbours of planted cases too.
- Planted work: +0.5 % is caught in 95 % of trials at a threshold of 0.25 %, +1 % in 99 % at 0.5 %, +5 % in
  99.9 % at 2 %, in drawn trials, of which there are enough to tell. They overlap: the interval beside them is
  that of trials that share no session but the record's. A case whose noise hides the work says so with the
  smallest slowdown that can be caught, and is not held to a target.
- A clock that is 1 % lower: SLOWER by times, at 0.5 %, and not by cycles.
- In simulated suites of 120 noisy cases with five recorded sessions, at most 5 % of runs have a false alarm.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpukern.selftest.gate_others import gate_rule_rows, other_rows
from pytest_gpukern.selftest.gate_rows import (
    DRAWN,
    IN_ORDER,
    CaseRow,
    ClockRow,
    GateConclusions,
    PlantedRow,
    SameRow,
    Share,
    SimulatedRow,
)
from pytest_gpukern.selftest.gate_trials import FRESH, RECORDED, Court, Judged, Trial, apart, drawn, in_order
from pytest_gpukern.values.result import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpukern.selftest.gate_cases import GateCase
    from pytest_gpukern.selftest.gate_recording import GateRecording
    from pytest_gpukern.selftest.gate_simulation import Row as SimulationRow

DEFAULT_THRESHOLD = 0.02
THRESHOLDS: Mapping[float, float] = MappingProxyType({0.005: 0.0025, 0.01: 0.005, 0.02: 0.01, 0.05: 0.02})
"""Share of additional work → threshold that it has to be caught at."""
TARGETS: Mapping[float, float] = MappingProxyType({0.005: 0.95, 0.01: 0.99, 0.05: 0.999})
LOWER_CLOCK = 0.01
CLOCK_THRESHOLD = 0.005
_DRAWS_OF_OTHERS = 200
"""Of cases that stayed as they are, which are many and held to the trials in order, and of a lower clock."""


class _Trials:
    """Verdicts on a recording's trials, each found once."""

    def __init__(self, court: Court, draws: int) -> None:
        self.court = court
        self.ordered = in_order(court.sessions)
        self.apart = apart(self.ordered)
        self.drawn = drawn(court.sessions, draws)
        self.judged = functools.cache(self._judged)

    def _judged(self, case: GateCase, trial: Trial, threshold: float) -> Judged | None:
        return self.court.judge(case, trial, threshold)

    def verdicts(
        self, cases: Sequence[GateCase], trials: Sequence[Trial], threshold: float
    ) -> Iterator[tuple[GateCase, Judged]]:
        """Of every trial of every case that was measured."""
        for case in cases:
            for trial in trials:
                found = self.judged(case, trial, threshold)
                if found is not None:
                    yield case, found

    def slower(self, cases: Sequence[GateCase], trials: Sequence[Trial], threshold: float) -> Share:
        """How many are SLOWER for good."""
        kinds = [found.final.kind for _, found in self.verdicts(cases, trials, threshold)]
        return Share(kinds.count(VerdictKind.SLOWER), len(kinds))

    def detectable(self, case: GateCase, threshold: float) -> float | None:
        """The smallest slowdown of a case that is caught with 95 %; the median of its verdicts in order."""
        ratios = [
            found.screened.detectable
            for _, found in self.verdicts([case], self.ordered, threshold)
            if found.screened.detectable is not None and math.isfinite(found.screened.detectable)
        ]
        return statistics.median(ratios) - 1 if ratios else None


def conclude(
    recording: GateRecording, simulation: Sequence[SimulationRow] = (), *, draws: int
) -> GateConclusions:
    """All rows from the recorded sessions and the simulation.

    Args:
        recording: with or without sessions.
        simulation: rows of `gate_simulation.simulate`; empty where it was left out.
        draws: how many trials are drawn.
    """
    simulated = tuple(_simulated_rows(simulation))
    if recording.no_gpu is not None:
        return GateConclusions(simulation=tuple(simulation), simulated=simulated)
    trials = _Trials(Court(recording), draws)
    unchanged = [case for case in recording.cases if not case.base]

    def caught(cases: Sequence[GateCase], threshold: float) -> Share:
        return trials.slower(cases, trials.ordered, threshold)

    rules = [
        *gate_rule_rows(caught, recording.cases, THRESHOLDS, DEFAULT_THRESHOLD),
        *other_rows(recording, trials.ordered, THRESHOLDS, DEFAULT_THRESHOLD),
    ]
    return GateConclusions(
        same=tuple(_same_rows(trials, unchanged)),
        cases=tuple(_case_rows(trials, unchanged)),
        planted=tuple(_planted_rows(trials, recording.cases)),
        clocks=tuple(_clock_rows(recording, trials, min(draws, _DRAWS_OF_OTHERS))),
        rules=tuple(rules) if trials.ordered else (),
        simulation=tuple(simulation),
        simulated=simulated,
        missing=tuple(_missing(recording, trials)),
    )


def _same_rows(trials: _Trials, unchanged: Sequence[GateCase]) -> Iterator[SameRow]:
    """In order at every threshold, and drawn at the default one."""
    thresholds = sorted({*THRESHOLDS.values(), DEFAULT_THRESHOLD}, reverse=True)
    asked = [(IN_ORDER, trials.ordered, threshold) for threshold in thresholds]
    asked.append((DRAWN, trials.drawn[:_DRAWS_OF_OTHERS], DEFAULT_THRESHOLD))
    for name, chosen, threshold in asked:
        found = list(trials.verdicts(unchanged, chosen, threshold))
        if not found:
            continue
        kinds = Counter(each.final.kind for _, each in found)
        slower = [case.id for case, each in found if each.final.kind is VerdictKind.SLOWER]
        yield SameRow(
            trials=name,
            threshold=threshold,
            judged=len(found),
            suspected=sum(each.screened.suspected for _, each in found),
            slower=len(slower),
            undecided=kinds[VerdictKind.UNDECIDED],
            same=kinds[VerdictKind.SAME],
            faster=kinds[VerdictKind.FASTER],
            invalid=kinds[VerdictKind.INVALID],
            alarms=dict(Counter(slower).most_common()),
            required=threshold == DEFAULT_THRESHOLD and name == IN_ORDER,
        )


def _case_rows(trials: _Trials, unchanged: Sequence[GateCase]) -> Iterator[CaseRow]:
    for case in unchanged:
        readings = [trials.court.reading(case.id, number) for number in range(trials.court.sessions)]
        medians = [each.median_ns for each in readings if each is not None and each.invalid is None]
        if medians:
            yield CaseRow(
                case=case.id,
                median_ns=statistics.median(medians),
                spread=statistics.stdev(map(math.log, medians)) if len(medians) > 1 else 0.0,
                detectable=trials.detectable(case, DEFAULT_THRESHOLD),
                sessions=len(medians),
            )


def _planted_rows(trials: _Trials, cases: Sequence[GateCase]) -> Iterator[PlantedRow]:
    for case in cases:
        if not case.base:
            continue
        threshold = THRESHOLDS[case.share]
        pairs = [
            (trials.court.reading(case.base, number), trials.court.reading(case.id, number))
            for number in range(trials.court.sessions)
        ]
        ratios = [more.median_ns / base.median_ns for base, more in pairs if base and more]
        yield PlantedRow(
            base=case.base,
            share=case.share,
            threshold=threshold,
            reads=statistics.median(ratios) - 1 if ratios else None,
            ordered=trials.slower([case], trials.ordered, threshold),
            apart=trials.slower([case], trials.apart, threshold),
            drawn=trials.slower([case], trials.drawn, threshold),
            detectable=trials.detectable(trials.court.cases[case.base], threshold),
            target=TARGETS.get(case.share),
        )


def _clock_rows(recording: GateRecording, trials: _Trials, draws: int) -> Iterator[ClockRow]:
    """Of the bases that compute and nothing else."""
    slowdown = 1 / (1 - LOWER_CLOCK)
    times = _Trials(Court(recording, slowdown=slowdown), draws)
    cycles = _Trials(Court(recording, slowdown=slowdown, cycles=True), draws)
    bases = dict.fromkeys(case.base for case in recording.cases if case.base)
    for case in recording.cases:
        if case.id in bases and case.kernel == "fma":
            yield ClockRow(
                case=case.id,
                lower=LOWER_CLOCK,
                threshold=CLOCK_THRESHOLD,
                times=times.slower([case], times.drawn, CLOCK_THRESHOLD),
                cycles=cycles.slower([case], cycles.drawn, CLOCK_THRESHOLD),
                detectable=trials.detectable(case, CLOCK_THRESHOLD),
            )


def _simulated_rows(simulation: Sequence[SimulationRow]) -> Iterator[SimulatedRow]:
    """The gate on noisy suites with as many recorded sessions as here, at the default threshold."""
    from pytest_gpukern.selftest.gate_simulation import NOISY

    for row in simulation:
        wanted = (NOISY.name, "gpukern", RECORDED, DEFAULT_THRESHOLD)
        if (row.noise, row.rule, row.sessions, row.threshold) == wanted:
            yield SimulatedRow(NOISY.cases, row.sessions, Share(row.false_runs, row.runs))


def _missing(recording: GateRecording, trials: _Trials) -> Iterator[str]:
    """What should have been measured and was not, or was wrong."""
    for number, session in enumerate(recording.sessions, start=1):
        if session.problem is not None:
            yield f"session {number} found nothing: {session.problem}"
    if len(recording.sessions) < recording.asked_sessions:
        yield f"{len(recording.sessions)} of {recording.asked_sessions} sessions are there"
    if not trials.drawn:
        least = RECORDED + 1 + FRESH
        yield f"{trials.court.sessions} sessions are too few for a trial, which takes {least}"
    found = [session for session in recording.sessions if session.problem is None]
    defaults = dict.fromkeys(session.default_timer for session in found)
    if len(defaults) > 1:
        yield f"sessions chose different timers: {', '.join(sorted(defaults))}"
    faults = Counter(f"{case}: {fault}" for session in found for case, fault in session.faults.items())
    for fault, sessions in faults.items():
        yield f"{fault} ({sessions} of {len(found)} sessions)"
