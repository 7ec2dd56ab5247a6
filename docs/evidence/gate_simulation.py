"""Simulates suites with the noise of a GPU: how often the gate gives a false alarm, and what it catches.

Makes the figures of "The gate, by simulation" in docs/explanation/evidence-log.md, and `FALSE_ALARMS` of
`pytest_gpukern.gate.judge`: `python docs/evidence/gate_simulation.py`. It needs no GPU. 2000
runs take about a quarter of an hour; `--runs` gives another number.

The log median of a session has four parts: the case's own deviation (Student's t with four degrees of
freedom, for heavy tails), a shift that the session gives to all its cases, a second mode for some of the
cases, and the noise of its samples, spikes included. `gate.judge.judge` and `gate.judge.confirm` themselves
give the verdicts, and the rules of other tools judge the same samples (`RULES`).
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpukern.gate.change import FRESH_PAIRS, FRESH_SESSIONS, MOST_FRESH_PAIRS
from pytest_gpukern.gate.comparability import Conditions, SessionTime
from pytest_gpukern.gate.judge import (
    Basis,
    Paired,
    confirm,
    judge,
    may_be_slower,
    shared_spread_of_pairs,
)
from pytest_gpukern.gate.spread import shared_spread, spread_key
from pytest_gpukern.measure.statistics import student_t
from pytest_gpukern.values.result import Measurement, Summary
from pytest_gpukern.values.verdict_table import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpukern.gate.change import Pair
    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.values.result import Verdict

SEED = 20261120
RUNS = 2000
SESSIONS = (3, 5, 8)
PLANTED = ((0.05, 0.02),)
AT_OTHER_THRESHOLDS = ((0.05, 0.01), (0.05, 0.005), (0.05, 0.0025), (0.05, 0.0))
PAIRS = (2, 4)
APPENDED = (5, 3)
"""Sessions that an epoch was opened with, and those that were appended later."""
PLANTED_ON_HOST = (1.0, 0.02)
PLANTED_IN_QUIET = ((0.005, 0.0025), (0.01, 0.005), (0.05, 0.02))

_KEY = "kernel/cupti/cold"
_TIME_NS = 1e6
_HERE = Conditions(1, "simulated-noise")
_DEGREES = 4  # of Student's t: kurtosis without bound
_MEDIAN_RANK = 40  # of 100 samples: the 95 % interval of their median, and 61
_SAMPLES = 100
_SPIKES = 0.03  # share of the samples that are later by a random time,
_SPIKE = 0.05  # which is so long in the mean
_EVERY = 4
"""Unchanged cases are judged in every run; planted slowdowns and other rules in one of four."""


@dataclass(frozen=True)
class Noise:
    """Says how much the times of a suite differ between sessions and within them; all relative.

    Attributes:
        spread: lowest and highest standard deviation between sessions, evenly in its logarithm; or the
            median and the standard deviation of its logarithm where `lognormal`.
        shift: standard deviation of the shift that a session adds to all its cases.
        bimodal: share of cases with two modes; each session is in one of them.
        modes: least and largest distance of the modes.
        within: standard deviation of the samples of a session.
    """

    name: str
    cases: int
    spread: tuple[float, float]
    lognormal: bool
    shift: float
    bimodal: float
    modes: tuple[float, float]
    within: float


NOISY = Noise("noisy", 120, (0.006, 0.7), True, 0.004, 0.08, (0.02, 0.06), 0.012)
"""A median spread of 0.6 %, 0.15 to 2.4 % for 95 % of the cases, and 8 % of them with two modes."""

QUIET = Noise("quiet", 120, (0.0001, 0.001), False, 0.0, 0.0, (0.0, 0.0), 0.001)
"""Kernels at a steady clock, as eight processes saw them on an idle H200."""

HOST = Noise("host", 20, (0.1, 0.8), True, 0.03, 0.08, (0.1, 0.4), 0.3)
"""Times of a host: a median spread of 10 %, 2 to 50 % for 95 % of the cases.

Sessions of one H200's host in the suites' baselines differed by 17 % end to end and by 20 % for copies (root
mean squares; 41 % at most). Launches with a wait differed by 0.5 to 14 % over the 40 sessions of
`tests/data/gate-h200.json`, 3 % of it shared by all launches of a session.
"""


ONE_OF_HOST = replace(HOST, name="host, one case", cases=1)
"""A case alone: there is no suite whose spread it could share."""


@dataclass(frozen=True)
class SimulationRow:
    """Counts how often one rule calls unchanged code slower, and catches changes, on one kind of noise.

    Attributes:
        rule: whose; the gate's names what it compares.
        sessions: that are recorded of each case, or pairs.
        threshold: of the gate; None where the rule has its own.
        change: planted slowdown.
        judged: cases in all runs.
        false: unchanged cases that were called slower.
        false_runs: runs with one of them or more.
        slowed: cases that a slowdown was planted in.
        caught: how many of them were called slower.
    """

    noise: str
    rule: str
    sessions: int
    threshold: float | None
    change: float
    runs: int
    judged: int
    false: int
    false_runs: int
    slowed: int
    caught: int


def simulate(
    runs: int = RUNS,
    *,
    seed: int = SEED,
    sessions: Sequence[int] = SESSIONS,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[SimulationRow, ...]:
    """Returns the whole table: gate and other rules on noisy suites, the gate on quiet ones, and pairs.

    Args:
        runs: simulated for each row; an eighth for other thresholds, 7.5 % with appended sessions, a
            tenth for quiet suites; of pairs a fifth, on a host half, and ten times as many of one case.
        seed: the same gives the same table.
        sessions: how many are recorded.
        tell: is told what is simulated next.
    """
    rows: list[SimulationRow] = []
    for recorded in sessions:
        tell(f"{runs} runs of {NOISY.cases} cases with {recorded} recorded sessions")
        rows += _simulated(NOISY, runs, recorded, PLANTED, seed, rivals=True)
        rows += _simulated(NOISY, _some(runs / 8), recorded, AT_OTHER_THRESHOLDS, seed, rivals=False)
    appended = _some(0.075 * runs)
    tell(
        f"{appended} runs of {NOISY.cases} cases with {APPENDED[0]} sessions and {APPENDED[1]} appended ones"
    )
    rows += _simulated(NOISY, appended, sum(APPENDED), PLANTED, seed, rivals=False, opening=APPENDED[0])
    quiet = _some(runs / 10)
    tell(f"{quiet} runs of {QUIET.cases} quiet cases")
    rows += _simulated(QUIET, quiet, 5, PLANTED_IN_QUIET, seed, rivals=False)
    for noise, planted, share, several in (
        (NOISY, PLANTED[0], 5, PAIRS),
        (HOST, PLANTED_ON_HOST, 2, PAIRS),
        (ONE_OF_HOST, PLANTED_ON_HOST, 0.1, PAIRS[-1:]),
    ):
        for pairs in several:
            tell(f"{_some(runs / share)} runs of {noise.cases} {noise.name} cases with {pairs} pairs")
            rows += _simulated_pairs(noise, _some(runs / share), pairs, planted, seed)
    return tuple(rows)


def _some(runs: float) -> int:
    return max(1, int(runs))


class _Tally:
    """Counts the verdicts of one rule over runs."""

    def __init__(self) -> None:
        self.runs = self.judged = self.false = self.false_runs = self.slowed = self.caught = 0

    def unchanged(self, slower: Sequence[bool]) -> None:
        self.runs += 1
        self.judged += len(slower)
        self.false += sum(map(bool, slower))
        self.false_runs += any(slower)

    def changed(self, slower: Sequence[bool]) -> None:
        self.slowed += len(slower)
        self.caught += sum(map(bool, slower))

    def row(
        self, noise: Noise, rule: str, sessions: int, threshold: float | None, change: float
    ) -> SimulationRow:
        counts = (self.runs, self.judged, self.false, self.false_runs, self.slowed, self.caught)
        return SimulationRow(noise.name, rule, sessions, threshold, change, *counts)


def _simulated(
    noise: Noise,
    runs: int,
    recorded: int,
    planted: Sequence[tuple[float, float]],
    seed: int,
    *,
    rivals: bool,
    opening: int = 0,
) -> Iterator[SimulationRow]:
    """Yields rows for one number of recorded sessions: the gate on each change, then the other rules."""
    import numpy as np

    rng = np.random.default_rng((seed, recorded))
    tallies = [_Tally() for _ in planted]
    others = {name: _Tally() for name in RULES} if rivals else {}
    for number in range(runs):
        samples = draw(noise, recorded + 1 + FRESH_SESSIONS, rng)
        for tally, (change, threshold) in zip(tallies, planted, strict=True):
            tally.unchanged(_run_of_gate(samples, recorded, 0.0, threshold, opening))
            if number % _EVERY == 0:
                tally.changed(_run_of_gate(samples, recorded, change, threshold, opening))
        last, new = samples[recorded - 1], samples[recorded]
        for name, tally in others.items() if number % _EVERY == 0 else ():
            rule = RULES[name]
            tally.unchanged(list(rule(last, new)))
            tally.changed(list(rule(last, new * (1 + planted[0][0]))))
    for tally, (change, threshold) in zip(tallies, planted, strict=True):
        rule = f"gpukern, {recorded - opening} of them appended" if opening else "gpukern"
        yield tally.row(noise, rule, recorded, threshold, change)
    for name, tally in others.items():
        yield tally.row(noise, name, 1, None, planted[0][0])


def _simulated_pairs(
    noise: Noise, runs: int, pairs: int, planted: tuple[float, float], seed: int
) -> Iterator[SimulationRow]:
    """Simulates two revisions in neighbouring sessions, and fresh pairs that confirm as many looks need."""
    import numpy as np

    rng, tally, (change, threshold) = np.random.default_rng((seed, pairs, 2)), _Tally(), planted
    for number in range(runs):
        samples = draw(noise, 2 * (pairs + max(MOST_FRESH_PAIRS, pairs)), rng)
        tally.unchanged(_run_of_pairs(samples, pairs, 0.0, threshold))
        if number % _EVERY == 0:
            tally.changed(_run_of_pairs(samples, pairs, change, threshold))
    yield tally.row(noise, "gpukern, two revisions in pairs", pairs, threshold, change)


def draw(noise: Noise, sessions: int, rng: Any) -> Any:
    """Returns samples in nanoseconds: sessions × cases × samples, sorted within a session."""
    import numpy as np

    shape = (sessions, noise.cases)
    low, high = noise.spread
    if noise.lognormal:
        spread = low * np.exp(high * rng.standard_normal(noise.cases))
    else:
        spread = np.exp(rng.uniform(math.log(low), math.log(high), noise.cases))
    heavy = rng.standard_t(_DEGREES, shape) / math.sqrt(_DEGREES / (_DEGREES - 2))
    logs = spread * heavy + noise.shift * rng.standard_normal((sessions, 1))
    distance = rng.uniform(*noise.modes, noise.cases) * (rng.random(noise.cases) < noise.bimodal)
    logs += distance * (rng.random(shape) < 0.5)
    within = noise.within * rng.standard_normal((*shape, _SAMPLES))
    within += rng.exponential(_SPIKE, within.shape) * (rng.random(within.shape) < _SPIKES)
    return np.sort(_TIME_NS * np.exp(logs[:, :, None] + within), axis=2)


def _run_of_gate(samples: Any, recorded: int, change: float, threshold: float, opening: int) -> list[bool]:
    """Says whether each case is SLOWER: judged by one new session, and where suspected, by two fresh ones.

    The first sessions opened the epoch, if only some of them did.
    """
    times = _centres(samples)
    record = [
        [SessionTime(_measurement(times[s][c], 1.0), _HERE, opening=s < opening) for s in range(recorded)]
        for c in range(samples.shape[1])
    ]
    shared = shared_spread(record).get(spread_key(_KEY))
    found = []
    for case, sessions in enumerate(record):
        new = [
            _measurement(times[s][case], 1 + change) for s in range(recorded, recorded + 1 + FRESH_SESSIONS)
        ]
        basis = Basis(sessions, _HERE, threshold, shared=shared)
        verdict = judge(new[:1], basis)
        if verdict.suspected:
            verdict = confirm(verdict, new[1:], basis)
        found.append(verdict.kind is VerdictKind.SLOWER)
    return found


def _run_of_pairs(samples: Any, pairs: int, change: float, threshold: float) -> list[bool]:
    """Says it for two revisions: the first pairs raise suspicions, the others confirm them."""
    times = _centres(samples)
    cases = [
        [
            (_measurement(times[2 * p][c], 1.0), _measurement(times[2 * p + 1][c], 1 + change))
            for p in range(len(times) // 2)
        ]
        for c in range(samples.shape[1])
    ]
    shared = shared_spread_of_pairs(case[:pairs] for case in cases).get(spread_key(_KEY))
    verdicts = [verdict_of_pairs(case, pairs, threshold, shared) for case in cases]
    return [verdict.kind is VerdictKind.SLOWER for verdict in verdicts]


def verdict_of_pairs(
    case: Sequence[Pair], first: int, threshold: float, shared: SharedSpread | None
) -> Verdict:
    """Returns the verdict of the first pairs; if they raise a suspicion, that of looks at the others.

    Two more are first ones, too, if they leave open a time that may be slower.
    """
    basis = Paired(threshold, shared)
    verdict = judge(case[:first], basis)
    if may_be_slower(verdict):
        first += FRESH_PAIRS
        verdict = judge(case[:first], basis)
    for taken in range(first + FRESH_PAIRS, len(case) + 1, FRESH_PAIRS):
        if not verdict.suspected:
            break
        verdict = confirm(verdict, case[first:taken], basis, last=taken == len(case))
    return verdict


def _centres(samples: Any) -> list[list[tuple[float, float, float]]]:
    """Returns median, low and high of every session and case, as a summary takes them from 100 samples."""
    import numpy as np

    middle = _SAMPLES // 2
    median = (samples[..., middle - 1] + samples[..., middle]) / 2
    ends = samples[..., _MEDIAN_RANK - 1], samples[..., _SAMPLES - _MEDIAN_RANK]
    stacked: list[list[tuple[float, float, float]]] = np.stack([median, *ends], axis=-1).tolist()
    return stacked


def _measurement(centre: tuple[float, float, float], factor: float) -> Measurement:
    median, low, high = (factor * time for time in centre)
    summary = Summary(median, low, high, _SAMPLES)
    return Measurement("kernel", "cupti", "cold", 1, summary)


# what other tools would say about the same samples: one session of each side, cases × samples

_TWO_SIDED_5_PERCENT = 0.975
_CRITERIONS_NOISE = 0.01
_MEDIAN_GREW = 0.05


def _mann_whitney(old: Any, new: Any) -> Any:
    """Tests p < 0.05 of the rank sum, as Google Benchmark's `compare.py` (Mann & Whitney 1947, normal)."""
    import numpy as np

    n = old.shape[1]
    ranks = np.argsort(np.argsort(np.concatenate([old, new], axis=1), axis=1), axis=1) + 1
    above = ranks[:, n:].sum(axis=1) - n * (n + 1) / 2
    z = (above - n * n / 2) / math.sqrt(n * n * (2 * n + 1) / 12)
    return z > student_t(_TWO_SIDED_5_PERCENT, math.inf)


def _t_test(old: Any, new: Any) -> Any:
    """Tests p < 0.05 by Student's test of the means."""
    t = (new.mean(axis=1) - old.mean(axis=1)) / _error(old, new)
    return t > student_t(_TWO_SIDED_5_PERCENT, 2 * old.shape[1] - 2)


def _criterion(old: Any, new: Any) -> Any:
    """Tests as criterion.rs by default: p < 0.05, and the interval of the mean's change lies above +1 %.

    We use the normal interval instead of the bootstrap's.
    """
    mean = old.mean(axis=1)
    error = _error(old, new) / mean
    low = new.mean(axis=1) / mean - 1 - student_t(_TWO_SIDED_5_PERCENT, math.inf) * error
    return _t_test(old, new) & (low > _CRITERIONS_NOISE)


def _nvbench(old: Any, new: Any) -> Any:
    """Tests as NVBench's `nvbench_compare.py`: the mean's change exceeds the smaller relative deviation."""
    import numpy as np

    noise = np.minimum(*(side.std(axis=1, ddof=1) / side.mean(axis=1) for side in (old, new)))
    return new.mean(axis=1) / old.mean(axis=1) - 1 > noise


def _median_grew(old: Any, new: Any) -> Any:
    """Tests as pytest-benchmark's `--benchmark-compare-fail=median:5%`."""
    import numpy as np

    return np.median(new, axis=1) > (1 + _MEDIAN_GREW) * np.median(old, axis=1)


def _error(old: Any, new: Any) -> Any:
    import numpy as np

    return np.sqrt(sum(side.var(axis=1, ddof=1) / side.shape[1] for side in (old, new)))


RULES: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "Mann-Whitney, p < 0.05": _mann_whitney,
        "t-test, p < 0.05": _t_test,
        "like criterion": _criterion,
        "like NVBench's compare": _nvbench,
        "median > 5 % (pytest-benchmark)": _median_grew,
    }
)


def main(arguments: Sequence[str]) -> None:
    """Prints the whole table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of 120 cases for each row (default: {RUNS})")
    rows = simulate(parser.parse_args(arguments).runs, tell=lambda line: print(line, file=sys.stderr))
    form = "{:<15} {:<32} {:>8} {:>9} {:>6} {:>8} {:>9} {:>6} {:>7}"
    print(
        form.format("noise", "rule", "sessions", "threshold", "runs", "false", "with one", "change", "caught")
    )
    for row in rows:
        threshold = "" if row.threshold is None else f"{100 * row.threshold:g} %"
        shares = (row.false / row.judged, row.false_runs / row.runs, row.change, row.caught / row.slowed)
        texts = (f"{100 * share:.3g} %" for share in shares)
        print(form.format(row.noise, row.rule, row.sessions, threshold, row.runs, *texts))


if __name__ == "__main__":
    main(sys.argv[1:])
