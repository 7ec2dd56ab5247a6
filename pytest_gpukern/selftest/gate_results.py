"""Concludes from recorded sessions what the gate catches and what it blames wrongly, against its promises.

All of it is computed from the recording alone. A trial takes five sessions for the record, one that is judged
against it, and two fresh ones that confirm a suspicion. In order of time, the first five are the record,
every later session is judged, and the two after it confirm. After the last comes the first behind the record.
Drawn trials choose sessions at random for each part. They overlap, so they are no additional evidence: they
show how much depends on the choice.

Targets, on a device with a steady clock:

- Unchanged cases, measured beside planted ones: in a thousand comparisons or more in order of time, none is
  SLOWER once confirmed, at the default threshold.
- Planted work: +0.5 % is caught in 95 % of drawn trials at a threshold of 0.25 %, +1 % in 99 % at 0.5 %, +5 %
  in 99.9 % at 2 %. The interval beside them is that of trials that share only the record's sessions. If a
  case's noise hides the work, it has no target, and shows the smallest slowdown that can be caught.
- A clock that is 1 % lower: SLOWER by times, at 0.5 %, and not by cycles.
- In simulated suites of 120 noisy cases with five recorded sessions, at most 5 % of runs have a false alarm.

Two other tools judge the same sessions by their own rules and data:

- pytest-benchmark with `--benchmark-compare-fail=median:X%` fails where current ÷ stored · 100 − 100 > X
  (`PercentageRegressionCheck` in its utils.py). It stores one run, by default the newest: here the last
  session of the record. Its data are wall times until the device is idle.
- NVBench's compare script by means (`python/scripts/nvbench_compare_legacy.py` in its repository) compares
  the relative change of the mean with the smaller of both relative standard deviations: SAME if
  |change| ≤ deviation, else FAST if it is negative, else SLOW. It has no threshold and no second look: every
  session that ran it is judged against every earlier one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.selftest.gate_simulation import NOISY
from pytest_gpukern.selftest.recording import Conclusions, missing_sessions
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.selftest.gate_kernels import GateCase
    from pytest_gpukern.selftest.gate_simulation import SimulationRow
    from pytest_gpukern.selftest.recording import GateReading, GateRecording, NvbenchReading
    from pytest_gpukern.values.result import Verdict

RECORDED = 5
FRESH = 2
SEED = 20261120
DEFAULT_THRESHOLD = 0.02
THRESHOLDS: Mapping[float, float] = MappingProxyType({0.005: 0.0025, 0.01: 0.005, 0.02: 0.01, 0.05: 0.02})
"""Share of additional work → threshold at which it has to be caught."""
TARGETS: Mapping[float, float] = MappingProxyType({0.005: 0.95, 0.01: 0.99, 0.05: 0.999})
LOWER_CLOCK = 0.01
CLOCK_THRESHOLD = 0.005
FEWEST_COMPARISONS = 1000
RUNS_WITH_FALSE_ALARM = 0.05
_CLOCK_SEEN = 0.99
_DRAWS_OF_CLOCKS = 200


@dataclass(frozen=True)
class Share:
    """Holds how many of a number of trials had an outcome."""

    count: int
    trials: int

    @property
    def value(self) -> float | None:
        """Returns the share, or None without trials."""
        return self.count / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        """Returns its 95 % interval for independent trials: Clopper & Pearson (1934), Biometrika 26, 404."""
        low, high = 0.0, 1.0
        if self.count:
            low = _probability(lambda p: 1 - _at_most(self.count - 1, self.trials, p) < 0.025)
        if self.count < self.trials:
            high = _probability(lambda p: _at_most(self.count, self.trials, p) > 0.025)
        return low, high


def _probability(below: Callable[[float], bool]) -> float:
    """Finds where `below` of a probability turns from true to false, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _at_most(count: int, trials: int, p: float) -> float:
    """Returns the binomial probability of at most `count`."""
    if p <= 0 or p >= 1:
        return float(p <= 0)
    logs = (math.log(math.comb(trials, k)) + k * math.log(p) for k in range(count + 1))
    return math.fsum(math.exp(log + (trials - k) * math.log1p(-p)) for k, log in enumerate(logs))


# rows


@dataclass(frozen=True)
class SameRow:
    """Counts verdicts on unchanged cases, in trials in order; all but `suspected` are final.

    Attributes:
        suspected: SLOWER by the session that was judged.
        slower: false alarms: SLOWER after two fresh sessions too.
        alarms: case → how often it was SLOWER.
    """

    threshold: float
    judged: int
    suspected: int
    slower: int
    undecided: int
    same: int
    faster: int
    invalid: int
    alarms: dict[str, int]

    @property
    def required(self) -> bool:
        """Returns whether there is a target for this threshold."""
        return self.threshold == DEFAULT_THRESHOLD

    @property
    def reached(self) -> bool | None:
        """Returns whether there was no false alarm; None without a target or with too few comparisons."""
        if not self.required or (not self.slower and self.judged < FEWEST_COMPARISONS):
            return None
        return self.slower == 0


@dataclass(frozen=True)
class CaseRow:
    """Says what the gate can detect in one unchanged case.

    Attributes:
        spread: standard deviation of the logarithms of the sessions' medians.
        detectable: smallest slowdown that is caught with 95 % at the default threshold, or None; the median
            over the trials in order.
    """

    case: str
    median_ns: float
    spread: float
    detectable: float | None
    sessions: int


@dataclass(frozen=True)
class PlantedRow:
    """Says how often more work was caught in a case; the sessions of its base are the record.

    Attributes:
        share: of additional work.
        reads: by how much its times exceed its base's in the same session; the median over sessions.
        apart: caught in those trials in order that share no session but the record's.
        detectable: smallest slowdown that is caught with 95 % at this threshold, or None.
        target: share of drawn trials that has to be caught, or None.
    """

    base: str
    share: float
    threshold: float
    reads: float | None
    ordered: Share
    apart: Share
    drawn: Share
    detectable: float | None
    target: float | None

    @property
    def resolvable(self) -> bool:
        """Returns whether the noise of the case lets it be caught."""
        return self.detectable is not None and self.detectable <= self.share

    @property
    def reached(self) -> bool | None:
        """Returns whether enough drawn trials were caught; None without a target or if noise prevents it."""
        if self.target is None or self.drawn.value is None:
            return None
        return self.drawn.value >= self.target or (False if self.resolvable else None)


@dataclass(frozen=True)
class ClockRow:
    """Holds verdicts on a compute-bound kernel as if the clock had been lower while it was judged.

    Attributes:
        times: SLOWER by its times.
        cycles: SLOWER by its times multiplied by the clock.
        detectable: as in `PlantedRow`.
    """

    case: str
    lower: float
    threshold: float
    times: Share
    cycles: Share
    detectable: float | None

    @property
    def reached(self) -> bool | None:
        """Returns whether times showed it and cycles did not; None if the case cannot be resolved."""
        if self.times.value is None or not self.cycles.trials:
            return None
        seen = self.times.value >= _CLOCK_SEEN
        if not seen and (self.detectable is None or self.detectable > 1 / (1 - self.lower) - 1):
            return None
        return seen and self.cycles.count == 0


@dataclass(frozen=True)
class RuleRow:
    """Says what one tool concludes from its own data of the same sessions.

    Attributes:
        threshold: the one given, or None where the tool has its own.
        share: of additional work that was to be caught.
        caught: base → how often it was caught with that much more work.
        alarms: unchanged cases that it called slower.
    """

    tool: str
    threshold: float | None
    share: float
    caught: dict[str, Share]
    alarms: Share


@dataclass(frozen=True)
class SimulationTarget:
    """Counts the runs of simulated suites in which the gate called an unchanged case SLOWER."""

    cases: int
    sessions: int
    runs: Share

    @property
    def reached(self) -> bool | None:
        """Returns whether they are few enough; None if there are too few runs to tell."""
        if self.runs.value is not None and self.runs.value <= RUNS_WITH_FALSE_ALARM:
            return True
        return False if self.runs.interval[0] > RUNS_WITH_FALSE_ALARM else None


@dataclass(frozen=True, kw_only=True)
class GateConclusions(Conclusions):
    """Holds every row of the gate's tables; `simulated` are the parts of the simulation with a target."""

    same: tuple[SameRow, ...] = ()
    cases: tuple[CaseRow, ...] = ()
    planted: tuple[PlantedRow, ...] = ()
    clocks: tuple[ClockRow, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    simulation: tuple[SimulationRow, ...] = ()
    simulated: tuple[SimulationTarget, ...] = ()


# trials


@dataclass(frozen=True)
class Trial:
    """Says which sessions are the record, are judged and confirm, numbered among those that succeeded."""

    record: tuple[int, ...]
    candidate: int
    fresh: tuple[int, ...]


def in_order(sessions: int) -> list[Trial]:
    """Returns a trial of every session after the first five, judged against these."""
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
    """Returns as many of the trials in order as share no session but those of the record."""
    chosen: list[Trial] = []
    used: set[int] = set()
    for trial in trials:
        own = {trial.candidate, *trial.fresh}
        if not own & used:
            chosen.append(trial)
            used |= own
    return chosen


def drawn(sessions: int, draws: int) -> list[Trial]:
    """Returns trials of sessions drawn at random, each at most once per trial."""
    size = RECORDED + 1 + FRESH
    if sessions < size:
        return []
    rng = random.Random(SEED)
    found = []
    for _ in range(draws):
        chosen = rng.sample(range(sessions), size)
        found.append(Trial(tuple(sorted(chosen[:RECORDED])), chosen[RECORDED], tuple(chosen[RECORDED + 1 :])))
    return found


class TrialVerdict(NamedTuple):
    """Holds the gate's verdicts on one case in one trial: the first, and the final one."""

    screened: Verdict
    final: Verdict


class Replay:
    """Replays the gate on a recording: judges its cases, each trial once.

    Args:
        recording: its sessions without a problem count.
        draws: how many trials are drawn.
        slowdown: multiplies times in the sessions that are judged, and divides clocks: 1/0.99 is the effect
            of a 1 % lower clock on a compute-bound kernel.
        cycles: judges times multiplied by clocks, in units of the recording's first clock, instead of times.
    """

    def __init__(
        self, recording: GateRecording, draws: int, *, slowdown: float = 1.0, cycles: bool = False
    ) -> None:
        self.cases = {case.id: case for case in recording.cases}
        self.sessions = [session for session in recording.sessions if session.problem is None]
        self.ordered = in_order(len(self.sessions))
        self.apart = apart(self.ordered)
        self.drawn = drawn(len(self.sessions), draws)
        self._readings: dict[tuple[str, int], GateReading] = {
            (reading.case, number): reading
            for number, session in enumerate(self.sessions)
            for reading in session.readings
        }
        self._device = recording.fingerprint.get("device_uuid")
        self._conditions = Conditions(1, {}, str(recording.fingerprint.get("device_name")))
        self._slowdown, self._cycles = slowdown, cycles
        clocks = (reading.sm_mhz for reading in self._readings.values() if reading.sm_mhz)
        self._first_mhz = next(clocks, 1.0)
        self.judge = functools.cache(self._judge)
        self._recorded = functools.cache(self._session_time)
        self._shared = functools.cache(self._shared_spread)

    def readings(self, case: str) -> list[GateReading | None]:
        """Returns what each session measured of a case."""
        return [self._readings.get((case, number)) for number in range(len(self.sessions))]

    def verdicts(
        self, cases: Sequence[GateCase], trials: Sequence[Trial], threshold: float
    ) -> Iterator[tuple[GateCase, TrialVerdict]]:
        """Yields the verdict of every trial of every case that was measured."""
        for case, trial in itertools.product(cases, trials):
            found = self.judge(case, trial, threshold)
            if found is not None:
                yield case, found

    def slower(self, cases: Sequence[GateCase], trials: Sequence[Trial], threshold: float) -> Share:
        """Counts final verdicts of SLOWER."""
        kinds = [found.final.kind for _, found in self.verdicts(cases, trials, threshold)]
        return Share(kinds.count(VerdictKind.SLOWER), len(kinds))

    def detectable(self, case: GateCase, threshold: float) -> float | None:
        """Returns the smallest slowdown that is caught with 95 %: the median over its trials in order."""
        ratios = [
            found.screened.detectable
            for _, found in self.verdicts([case], self.ordered, threshold)
            if found.screened.detectable is not None and math.isfinite(found.screened.detectable)
        ]
        return statistics.median(ratios) - 1 if ratios else None

    def _judge(self, case: GateCase, trial: Trial, threshold: float) -> TrialVerdict | None:
        """Judges a case against the record of its base; None where a session did not measure it."""
        base = case.base or case.id
        wanted = [(base, number) for number in trial.record]
        wanted += [(case.id, number) for number in (trial.candidate, *trial.fresh)]
        readings = [self._readings.get(place) for place in wanted]
        if any(each is None or (self._cycles and each.sm_mhz is None) for each in readings):
            return None
        record = [self._recorded(base, number) for number in trial.record]
        first = self._measured(case.id, trial.candidate)
        basis = Basis(
            record,
            self._conditions,
            threshold,
            jitter_ns=first.jitter_ns,
            device=self._device,
            shared=self._shared(trial.record).get(spread_key(first.key)),
        )
        screened = judge([first], basis)
        if not screened.suspected:
            return TrialVerdict(screened, screened)
        fresh = [self._measured(case.id, number) for number in trial.fresh]
        again = dataclasses.replace(basis, jitter_ns=max(each.jitter_ns for each in fresh))
        return TrialVerdict(screened, confirm(screened, fresh, again))

    def _session_time(self, case: str, number: int) -> SessionTime:
        found = self._measured(case, number, recorded=True)
        summary = found.summary
        times = summary.median_ns, summary.low_ns, summary.high_ns
        return SessionTime(summary.n, *times, key=found.key, conditions=self._conditions, device=self._device)

    def _measured(self, case: str, number: int, *, recorded: bool = False) -> Measurement:
        reading = self._readings[case, number]
        # The slowdown multiplies times and divides clocks, so it cancels in cycles.
        scale = (reading.sm_mhz or 0.0) / self._first_mhz if self._cycles else 1.0
        scale *= 1.0 if self._cycles or recorded else self._slowdown
        times = reading.median_ns * scale, reading.low_ns * scale, reading.high_ns * scale
        return Measurement(
            scope="kernel",
            timer=self.sessions[number].default_timer,
            measures="",
            cache=self.cases[case].cache,
            samples_ns=(),
            iterations=1,
            summary=Summary(*times, reading.samples),
            stopped="",
            jitter_ns=reading.jitter_ns,
            invalid=reading.invalid,
        )

    def _shared_spread(self, record: tuple[int, ...]) -> dict[str, SharedSpread]:
        """Returns the spread that the unchanged cases share in these sessions, as in a baseline."""
        return shared_spread(
            [self._recorded(case.id, number) for number in record if (case.id, number) in self._readings]
            for case in self.cases.values()
            if not case.base
        )


# conclusions


def conclude(
    recording: GateRecording, simulation: Sequence[SimulationRow] = (), *, draws: int
) -> GateConclusions:
    """Returns all rows from the recorded sessions and from `gate_simulation.simulate`.

    Args:
        recording: with or without sessions.
        simulation: rows of it; empty where it was left out.
        draws: how many trials are drawn.
    """
    simulated = tuple(_simulated_rows(simulation))
    if recording.no_gpu is not None:
        return GateConclusions(simulation=tuple(simulation), simulated=simulated)
    replay = Replay(recording, draws)
    unchanged = [case for case in recording.cases if not case.base]
    return GateConclusions(
        same=tuple(_same_rows(replay, unchanged)),
        cases=tuple(_case_rows(replay, unchanged)),
        planted=tuple(_planted_rows(replay, recording.cases)),
        clocks=tuple(_clock_rows(recording, replay, min(draws, _DRAWS_OF_CLOCKS))),
        rules=tuple(_rule_rows(replay, unchanged)),
        simulation=tuple(simulation),
        simulated=simulated,
        missing=tuple(_missing(recording, replay)),
    )


def _same_rows(replay: Replay, unchanged: Sequence[GateCase]) -> Iterator[SameRow]:
    """Judges unchanged cases at every threshold."""
    for threshold in sorted({*THRESHOLDS.values(), DEFAULT_THRESHOLD}, reverse=True):
        found = list(replay.verdicts(unchanged, replay.ordered, threshold))
        if not found:
            continue
        kinds = Counter(each.final.kind for _, each in found)
        slower = Counter(case.id for case, each in found if each.final.kind is VerdictKind.SLOWER)
        yield SameRow(
            threshold=threshold,
            judged=len(found),
            suspected=sum(each.screened.suspected for _, each in found),
            slower=slower.total(),
            undecided=kinds[VerdictKind.UNDECIDED],
            same=kinds[VerdictKind.SAME],
            faster=kinds[VerdictKind.FASTER],
            invalid=kinds[VerdictKind.INVALID],
            alarms=dict(slower.most_common()),
        )


def _case_rows(replay: Replay, unchanged: Sequence[GateCase]) -> Iterator[CaseRow]:
    for case in unchanged:
        medians = [each.median_ns for each in replay.readings(case.id) if each and each.invalid is None]
        if medians:
            yield CaseRow(
                case=case.id,
                median_ns=statistics.median(medians),
                spread=statistics.stdev(map(math.log, medians)) if len(medians) > 1 else 0.0,
                detectable=replay.detectable(case, DEFAULT_THRESHOLD),
                sessions=len(medians),
            )


def _planted_rows(replay: Replay, cases: Sequence[GateCase]) -> Iterator[PlantedRow]:
    for case in cases:
        if not case.base:
            continue
        threshold = THRESHOLDS[case.share]
        pairs = zip(replay.readings(case.base), replay.readings(case.id), strict=True)
        ratios = [more.median_ns / base.median_ns for base, more in pairs if base and more]
        yield PlantedRow(
            base=case.base,
            share=case.share,
            threshold=threshold,
            reads=statistics.median(ratios) - 1 if ratios else None,
            ordered=replay.slower([case], replay.ordered, threshold),
            apart=replay.slower([case], replay.apart, threshold),
            drawn=replay.slower([case], replay.drawn, threshold),
            detectable=replay.detectable(replay.cases[case.base], threshold),
            target=TARGETS.get(case.share),
        )


def _clock_rows(recording: GateRecording, replay: Replay, draws: int) -> Iterator[ClockRow]:
    """Judges the compute-bound bases."""
    slowdown = 1 / (1 - LOWER_CLOCK)
    times = Replay(recording, draws, slowdown=slowdown)
    cycles = Replay(recording, draws, slowdown=slowdown, cycles=True)
    bases = dict.fromkeys(case.base for case in recording.cases if case.base)
    for case in recording.cases:
        if case.id in bases and case.kernel == "fma":
            yield ClockRow(
                case=case.id,
                lower=LOWER_CLOCK,
                threshold=CLOCK_THRESHOLD,
                times=times.slower([case], times.drawn, CLOCK_THRESHOLD),
                cycles=cycles.slower([case], cycles.drawn, CLOCK_THRESHOLD),
                detectable=replay.detectable(case, CLOCK_THRESHOLD),
            )


def _simulated_rows(simulation: Sequence[SimulationRow]) -> Iterator[SimulationTarget]:
    """Picks the gate on noisy suites with as many recorded sessions as here, at the default threshold."""
    for row in simulation:
        wanted = (NOISY.name, "gpukern", RECORDED, DEFAULT_THRESHOLD)
        if (row.noise, row.rule, row.sessions, row.threshold) == wanted:
            yield SimulationTarget(NOISY.cases, row.sessions, Share(row.false_runs, row.runs))


def _missing(recording: GateRecording, replay: Replay) -> Iterator[str]:
    """Says what should have been measured and was not, or was wrong."""
    yield from missing_sessions(recording)
    if not replay.drawn:
        least = RECORDED + 1 + FRESH
        yield f"{len(replay.sessions)} sessions are too few for a trial, which takes {least}"
    faults = Counter(
        f"{case}: {fault}" for session in replay.sessions for case, fault in session.faults.items()
    )
    for fault, sessions in faults.items():
        yield f"{fault} ({sessions} of {len(replay.sessions)} sessions)"


# other tools on the same sessions


def _rule_rows(replay: Replay, unchanged: Sequence[GateCase]) -> Iterator[RuleRow]:
    """Asks each tool about planted work of each size, and about unchanged cases at the same threshold."""
    tools: dict[str, Callable[[Sequence[GateCase], float], Share]] = {
        "gpukern": lambda cases, threshold: replay.slower(cases, replay.ordered, threshold),
        "pytest-benchmark": functools.partial(_by_medians, replay),
        "NVBench": lambda cases, _: _by_nvbench(replay, cases),
    }
    for (tool, asked), (share, threshold) in itertools.product(tools.items(), THRESHOLDS.items()):
        planted = [case for case in replay.cases.values() if case.base and case.share == share]
        caught = {case.base: asked([case], threshold) for case in planted}
        if any(each.trials for each in caught.values()):
            given = None if tool == "NVBench" else threshold
            yield RuleRow(tool, given, share, caught, asked(unchanged, threshold))


def median_failed(stored_ns: float, current_ns: float, threshold: float) -> bool:
    """Says whether pytest-benchmark's comparison of medians fails; a threshold of 0.02 is `median:2%`."""
    return current_ns / stored_ns * 100 - 100 > 100 * threshold


def nvbench_slow(stored: NvbenchReading, current: NvbenchReading) -> bool:
    """Says whether NVBench's comparison says SLOW."""
    change = (current.mean_ns - stored.mean_ns) / stored.mean_ns
    return abs(change) > min(stored.noise, current.noise) and change > 0


def _by_medians(replay: Replay, cases: Sequence[GateCase], threshold: float) -> Share:
    found = []
    for case, trial in itertools.product(cases, replay.ordered):
        stored = replay.sessions[trial.record[-1]].walls_ns.get(case.base or case.id)
        current = replay.sessions[trial.candidate].walls_ns.get(case.id)
        if stored and current:
            found.append(median_failed(stored, current, threshold))
    return Share(sum(found), len(found))


def _by_nvbench(replay: Replay, cases: Sequence[GateCase]) -> Share:
    by_case = [
        {each.case: each for each in session.nvbench} for session in replay.sessions if session.nvbench
    ]
    found = []
    for case, (earlier, later) in itertools.product(cases, itertools.combinations(by_case, 2)):
        stored, current = earlier.get(case.base or case.id), later.get(case.id)
        if stored is not None and current is not None:
            found.append(nvbench_slow(stored, current))
    return Share(sum(found), len(found))
