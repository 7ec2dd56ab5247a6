"""The last line of a run: how many cases passed, failed or did not run, and how their times compare."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpukern.findings.failures import failures
from pytest_gpukern.gate.false_alarm_rate import expected_false_alarms
from pytest_gpukern.report.scope_time import scope_times, verdict_of
from pytest_gpukern.values.result import Correctness, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpukern.values.result import Result

Skip = tuple[str, str]
"""Id of a case or a test that did not run, and why, in words."""

_ORDER = (
    VerdictKind.SAME,
    VerdictKind.FASTER,
    VerdictKind.SLOWER,
    VerdictKind.UNDECIDED,
    VerdictKind.UNCOMPARABLE,
    VerdictKind.INVALID,
    VerdictKind.NEW,
)


def totals(
    results: Sequence[Result],
    skips: Sequence[Skip] = (),
    *,
    failed: int = 0,
    by_themselves: Collection[str] = (),
    gate: str = "fail",
    strict: bool = False,
    gate_on: Collection[str] = ("time",),
    accepts: bool = False,
    compared_with: str = "baseline",
) -> str:
    """`gpukern: 41 passed, 3 simulated, 5 skipped (no GPU) · baseline: 30 same, 1 slower, 2 new`.

    Each result is counted once, for the first that is true of it: incorrect, failed otherwise, failed by the
    gate, simulated, unchecked, passed. Verdicts are counted by scope.

    Args:
        results: one a test that found something out.
        skips: tests that did not run.
        failed: tests that failed for whatever reason; those without another place here are counted as
            "failed otherwise".
        by_themselves: pytest's names of those of them whose results are here, and that not the gate failed.
        gate: `fail`, `warn` or `off`: only `fail` fails a test.
        strict: whether verdicts that say "don't know" fail.
        gate_on: what fails a test, as `failures` takes it.
        accepts: whether the run opens epochs for what it measures, likewise.
        compared_with: what verdicts are about.
    """
    counts: Counter[str] = Counter()
    for result in results:
        gated = gate == "fail" and failures(result, strict=strict, gate_on=gate_on, accepts=accepts)
        counts[_standing(result, by_itself=result.nodeid in by_themselves, by_the_gate=bool(gated))] += 1
    otherwise = failed - counts["incorrect"] - counts["failed by the gate"]
    counts["failed otherwise"] = max(0, otherwise)
    order = ("passed", "incorrect", "failed by the gate", "failed otherwise", "simulated", "unchecked")
    told = {name for name in order if counts[name]} | ({"passed"} if not counts["simulated"] else set())
    parts = [f"{counts[name]} {name}" for name in order if name in told]
    if skips:
        parts.append(_skipped(skips))
    line = f"gpukern: {', '.join(parts)}"
    verdicts = Counter(
        verdict_of(result, time)[0]
        for result in results
        if result.correctness is not Correctness.INCORRECT
        for time in scope_times(result)
    )
    compared = [f"{verdicts[kind.value]} {kind.value.lower()}" for kind in _ORDER if verdicts[kind.value]]
    return f"{line} · {compared_with}: {', '.join(compared)}" if compared else line


def false_alarms(results: Sequence[Result]) -> list[str]:
    """A line that says how many verdicts could fail a test, and how often they would do so for nothing."""
    gated = [verdict for result in results for verdict in result.verdicts.values() if verdict.false_alarm > 0]
    if not gated:
        return []
    times = "1 time was" if len(gated) == 1 else f"{len(gated)} times were"
    return [f"{times} gated: {expected_false_alarms(gated):.1g} false SLOWER to be expected in such a run"]


def _standing(result: Result, *, by_itself: bool, by_the_gate: bool) -> str:
    if result.correctness is Correctness.INCORRECT:
        return "incorrect"
    if by_itself:
        return "failed otherwise"
    if by_the_gate:
        return "failed by the gate"
    if result.simulated:
        return "simulated"
    return "unchecked" if result.correctness is Correctness.UNCHECKED else "passed"


def _skipped(skips: Sequence[Skip]) -> str:
    leading = Counter(reason.partition(":")[0].strip() or "no reason given" for _, reason in skips)
    if len(leading) == 1:
        return f"{len(skips)} skipped ({next(iter(leading))})"
    return f"{len(skips)} skipped ({', '.join(f'{count} {reason}' for reason, count in leading.items())})"
