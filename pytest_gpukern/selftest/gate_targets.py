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

import dataclasses
import functools
import itertools
import math
import random
import statistics
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import Basis, confirm, judge
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.values.result import Measurement, Summary, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.selftest.gate_kernels import GateCase
    from pytest_gpukern.selftest.gate_recording import GateReading, GateRecording, GateSession, NvbenchReading
    from pytest_gpukern.selftest.gate_simulation import Row as SimulationRow
    from pytest_gpukern.values.result import JsonDict, Verdict


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


IN_ORDER, DRAWN = "in order", "drawn"
FEWEST_COMPARISONS = 1000
RUNS_WITH_FALSE_ALARM = 0.05
_CLOCK_SEEN = 0.99
_BISECTIONS = 60


@dataclass(frozen=True)
class Share:
    """How many of so many trials ended in one way."""

    count: int
    trials: int

    @property
    def value(self) -> float | None:
        """The share, or None without trials."""
        return self.count / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval where trials are independent: Clopper & Pearson (1934), Biometrika 26, 404.

        The bounds are the probabilities with which as many or more, and as many or fewer, come out in 2.5 %
        of all series.
        """
        if not self.trials:
            return 0.0, 1.0
        low = high = 0.0
        if self.count:
            low = _probability(lambda p: 1 - _at_most(self.count - 1, self.trials, p) < 0.025)
        high = 1.0
        if self.count < self.trials:
            high = _probability(lambda p: _at_most(self.count, self.trials, p) > 0.025)
        return low, high


def _probability(below: Any) -> float:
    """Where `below` of a probability turns from true to false."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


def _at_most(count: int, trials: int, p: float) -> float:
    """The binomial probability of at most `count`."""
    if p <= 0 or p >= 1:
        return float(p <= 0)
    ways = math.lgamma(trials + 1)
    terms = (
        ways
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(p)
        + (trials - k) * math.log1p(-p)
        for k in range(count + 1)
    )
    return math.fsum(math.exp(term) for term in terms)


@dataclass(frozen=True)
class SameRow:
    """Verdicts on cases that stayed as they are.

    Attributes:
        trials: `in order` or `drawn`.
        threshold: of the gate.
        judged: comparisons.
        suspected: SLOWER by the session that was judged.
        slower: SLOWER for good, after two fresh sessions: false alarms.
        undecided: for good, as all that follow.
        same: inside the threshold.
        faster: significantly.
        invalid: refused.
        alarms: case → how often it was SLOWER.
        required: whether the target is about it.
    """

    trials: str
    threshold: float
    judged: int
    suspected: int
    slower: int
    undecided: int
    same: int
    faster: int
    invalid: int
    alarms: dict[str, int]
    required: bool

    @property
    def share(self) -> Share:
        """Of false alarms among all comparisons."""
        return Share(self.slower, self.judged)

    @property
    def reached(self) -> bool | None:
        """Whether there was no false alarm; None where that is not asked, or too little was judged."""
        if not self.required or (not self.slower and self.judged < FEWEST_COMPARISONS):
            return None
        return self.slower == 0


@dataclass(frozen=True)
class CaseRow:
    """What the gate can see of one case that stayed as it is.

    Attributes:
        case: its id.
        median_ns: of the sessions' medians.
        spread: standard deviation of their logarithms.
        detectable: smallest slowdown that is caught with 95 % at the default threshold, or None; the median
            over the trials in order.
        sessions: how many measured it.
    """

    case: str
    median_ns: float
    spread: float
    detectable: float | None
    sessions: int


@dataclass(frozen=True)
class PlantedRow:
    """Verdicts on a case that does more work than its base, whose sessions are the record.

    Attributes:
        base: id of the base.
        share: of additional work.
        threshold: of the gate.
        reads: by how much its times exceed its base's in the same session, the median.
        ordered: caught in trials in order.
        apart: caught in those of them that share no session but the record's.
        drawn: caught in drawn trials.
        detectable: smallest slowdown that is caught with 95 % at this threshold, or None.
        target: share that has to be caught, or None.
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
        """Whether the noise of the case lets it be caught."""
        return self.detectable is not None and self.detectable <= self.share

    @property
    def reached(self) -> bool | None:
        """Whether enough drawn trials were caught; None where that is not asked, or noise prevents it."""
        if self.target is None or self.drawn.value is None:
            return None
        return self.drawn.value >= self.target or (False if self.resolvable else None)


@dataclass(frozen=True)
class ClockRow:
    """A kernel that computes, as if the clock were lower while it was judged.

    Attributes:
        case: its id.
        lower: by how much, 0.01 for 1 %.
        threshold: of the gate.
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
        """Whether times told of it and cycles did not; None where the case cannot be resolved."""
        if self.times.value is None or not self.cycles.trials:
            return None
        if self.times.value < _CLOCK_SEEN and (
            self.detectable is None or self.detectable > 1 / (1 - self.lower) - 1
        ):
            return None
        return self.times.value >= _CLOCK_SEEN and self.cycles.count == 0


@dataclass(frozen=True)
class RuleRow:
    """What one tool says on its own data of the same sessions.

    Attributes:
        tool: whose rule.
        subject: what it was asked about: cases that stayed as they are, or a planted one.
        threshold: that it was given, or None where it has its own.
        slower: called slower: false alarms, or caught.
        planted: whether there was something to catch.
    """

    tool: str
    subject: str
    threshold: float | None
    slower: Share
    planted: bool


@dataclass(frozen=True)
class SimulatedRow:
    """Runs of simulated suites in which the gate called a case SLOWER that stayed as it was.

    Attributes:
        cases: in a run.
        sessions: recorded of each.
        runs: with one such case or more.
    """

    cases: int
    sessions: int
    runs: Share

    @property
    def reached(self) -> bool | None:
        """Whether they are few enough; None where so few runs cannot tell."""
        if self.runs.value is not None and self.runs.value <= RUNS_WITH_FALSE_ALARM:
            return True
        return False if self.runs.interval[0] > RUNS_WITH_FALSE_ALARM else None


@dataclass(frozen=True)
class GateConclusions:
    """All rows.

    Attributes:
        same: cases that stayed as they are.
        cases: what can be seen of each.
        planted: cases that do more.
        clocks: a lower clock.
        rules: the gate and other tools on the same sessions.
        simulation: of the gate and others on simulated noise; empty where it was left out.
        simulated: what of it there is a target for.
        missing: what should have been measured and was not, in words; each is a target that was missed.
    """

    same: tuple[SameRow, ...] = ()
    cases: tuple[CaseRow, ...] = ()
    planted: tuple[PlantedRow, ...] = ()
    clocks: tuple[ClockRow, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    simulation: tuple[SimulationRow, ...] = ()
    simulated: tuple[SimulatedRow, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def verdicts(self) -> list[bool]:
        """Whether each target is reached, what was not measured included."""
        rows: tuple[Any, ...] = (*self.same, *self.planted, *self.clocks, *self.simulated)
        found = [row.reached for row in rows if row.reached is not None]
        return [*found, *(False for _ in self.missing)]

    @property
    def reached(self) -> bool:
        """Whether every target is."""
        return bool(self.verdicts) and all(self.verdicts)

    def to_json(self) -> JsonDict:
        """All rows with what was concluded, as plain JSON."""

        def plain(row: Any) -> JsonDict:
            more = {"reached": row.reached} if hasattr(row, "reached") else {}
            return {**dataclasses.asdict(row), **more}

        names = ("same", "cases", "planted", "clocks", "rules", "simulation", "simulated")
        rows = {name: [plain(row) for row in getattr(self, name)] for name in names}
        return {"reached": self.reached, **rows, "missing": list(self.missing)}


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
        basis = Basis(
            record,
            self._conditions,
            threshold,
            jitter_ns=first.jitter_ns,
            device=self._device,
            shared=self._spread(trial.record).get(spread_key(first.key)),
        )
        screened = judge([first], basis)
        if not screened.suspected:
            return Judged(screened, screened)
        fresh = [self._measured(case.id, number) for number in trial.fresh]
        again = dataclasses.replace(basis, jitter_ns=max(each.jitter_ns for each in fresh))
        final = confirm(screened, fresh, again)
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


PYTEST_BENCHMARK = "pytest-benchmark"
NVBENCH_COMPARE = "NVBench"
UNCHANGED = "unchanged cases"


def median_failed(stored_ns: float, current_ns: float, threshold: float) -> bool:
    """Whether pytest-benchmark's comparison of medians fails; a threshold of 0.02 is `median:2%`."""
    return current_ns / stored_ns * 100 - 100 > 100 * threshold


def nvbench_slow(stored: NvbenchReading, current: NvbenchReading) -> bool:
    """Whether NVBench's comparison says SLOW."""
    change = (current.mean_ns - stored.mean_ns) / stored.mean_ns
    return abs(change) > min(stored.noise, current.noise) and change > 0


def other_rows(
    recording: GateRecording,
    trials: Sequence[Trial],
    planted: Mapping[float, float],
    default_threshold: float,
) -> Iterator[RuleRow]:
    """Rows of both tools: false alarms, then what they catch.

    Args:
        recording: sessions in which they measured.
        trials: of the gate, in order; those of pytest-benchmark.
        planted: share of additional work → threshold.
        default_threshold: for cases that stayed as they are.
    """
    sessions = [session for session in recording.sessions if session.problem is None]
    unchanged = [case for case in recording.cases if not case.base]
    for threshold in sorted({*planted.values(), default_threshold}):
        alarms = _of_walls(sessions, trials, unchanged, threshold)
        if alarms.trials:
            yield RuleRow(PYTEST_BENCHMARK, UNCHANGED, threshold, alarms, planted=False)
    for case in recording.cases:
        if case.base:
            caught = _of_walls(sessions, trials, [case], planted[case.share])
            if caught.trials:
                yield RuleRow(PYTEST_BENCHMARK, case.id, planted[case.share], caught, planted=True)
    alarms = _of_nvbench(sessions, unchanged)
    if alarms.trials:
        yield RuleRow(NVBENCH_COMPARE, UNCHANGED, None, alarms, planted=False)
    for case in recording.cases:
        caught = _of_nvbench(sessions, [case] if case.base else [])
        if caught.trials:
            yield RuleRow(NVBENCH_COMPARE, case.id, None, caught, planted=True)


def _of_walls(
    sessions: Sequence[GateSession], trials: Sequence[Trial], cases: Sequence[GateCase], threshold: float
) -> Share:
    found = []
    for case, trial in itertools.product(cases, trials):
        stored = sessions[trial.record[-1]].walls_ns.get(case.base or case.id)
        current = sessions[trial.candidate].walls_ns.get(case.id)
        if stored and current:
            found.append(median_failed(stored, current, threshold))
    return Share(sum(found), len(found))


def _of_nvbench(sessions: Sequence[GateSession], cases: Sequence[GateCase]) -> Share:
    """Every session that NVBench ran in against every earlier one."""
    by_case = [{each.case: each for each in session.nvbench} for session in sessions if session.nvbench]
    found = []
    for case, (earlier, later) in itertools.product(cases, itertools.combinations(by_case, 2)):
        stored, current = earlier.get(case.base or case.id), later.get(case.id)
        if stored is not None and current is not None:
            found.append(nvbench_slow(stored, current))
    return Share(sum(found), len(found))


def gate_rule_rows(
    caught: Callable[[Sequence[GateCase], float], Share],
    cases: Sequence[GateCase],
    planted: Mapping[float, float],
    default_threshold: float,
) -> Iterator[RuleRow]:
    """Rows of the gate for the same questions.

    Args:
        caught: how often the gate calls cases SLOWER at a threshold, in the trials in order.
        cases: of the recording.
        planted: share of additional work → threshold.
        default_threshold: for cases that stayed as they are.
    """
    unchanged = [case for case in cases if not case.base]
    for threshold in sorted({*planted.values(), default_threshold}):
        yield RuleRow("gpukern", UNCHANGED, threshold, caught(unchanged, threshold), planted=False)
    for case in cases:
        if case.base:
            share = caught([case], planted[case.share])
            yield RuleRow("gpukern", case.id, planted[case.share], share, planted=True)
