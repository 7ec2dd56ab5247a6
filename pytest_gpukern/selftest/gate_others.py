"""The same trials judged by other tools' rules on their own data.

- pytest-benchmark with `--benchmark-compare-fail=median:X%` fails where current ÷ stored · 100 − 100 > X
  (`PercentageRegressionCheck` in its utils.py). What is stored is one run, by default the newest: here the
  last session of the record. Its data are wall times until the device is idle.
- NVBench's compare script by means (`python/scripts/nvbench_compare_legacy.py` in its repository, the rule of
  `nvbench_compare.py` before that had a robust one): with the change of the mean relative to the stored one,
  and the smaller of both relative standard deviations, SAME where |change| ≤ deviation, else FAST where it is
  negative, else SLOW. It knows no threshold and no second look.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pytest_gpukern.selftest.gate_rows import RuleRow, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpukern.selftest.gate_cases import GateCase
    from pytest_gpukern.selftest.gate_recording import GateRecording, GateSession, NvbenchReading
    from pytest_gpukern.selftest.gate_trials import Trial

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
