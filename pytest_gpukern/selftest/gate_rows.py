"""What is concluded from the sessions of `gpukern selftest --gate`, and whether each target is reached."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpukern.selftest.gate_simulation import Row as SimulationRow
    from pytest_gpukern.values.result import JsonDict

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
