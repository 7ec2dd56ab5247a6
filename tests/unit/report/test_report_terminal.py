"""Lines of the terminal; `tests/plugin/test_golden.py` holds the tables."""

from __future__ import annotations

import re

import pytest
from made_up_results import measured, result, verdict
from msgspec import structs

from pytest_gpukern.baseline.record import Epoch, Record
from pytest_gpukern.report.details import epochs
from pytest_gpukern.report.run import Failure, RunResults, Skip
from pytest_gpukern.report.terminal import render, skip_lines
from pytest_gpukern.values.result import GateFailure

SKIPS = [
    Skip(f"a/numba.v{i}/n=1", reason.format(i), *kind)
    for count, reason, *kind in (
        (45, "pycuda is not installed"),
        (28, "torch is not installed"),
        (2, "detected by tool {0}: --gpukern-sanitize={0}"),
        (6, "not in the simulator: feature {0}", "not in the simulator"),
        (5, "only at n={0}: --gpukern-size=huge"),
        (9, "reason {0} of its own, which takes more than a line" * 2),
    )
    for i in range(count)
]


def test_every_skip_is_counted_once_and_the_rarest_reasons_are_told_at_length():
    for details, most in (("-v", 11), (None, 24 * 4)):
        lines = [line.text for line in skip_lines(SKIPS, 80, details)]
        assert len(lines) <= most
        assert sum(int(found[1]) for found in map(re.compile(r"(\d+) skipped").match, lines) if found) == 95
    assert skip_lines(SKIPS[:1], 80, "-v")[0].text == "1 skipped: pycuda is not installed (a/numba.v0/n=1)"


def test_the_report_ends_with_the_last_line_and_a_run_without_anything_has_none():
    lines = render(RunResults([result()], skips=[Skip("x", "no GPU")]), width=120)
    assert lines[-1].text == "gpukern: 1 passed, 1 skipped (no GPU)"
    assert render(RunResults(), width=120) == []


@pytest.mark.parametrize("scope", ["kernel   ", "end_to_end"])
def test_a_slower_time_stands_apart_from_its_scope(scope):
    slower = result("a.b", measured(scope=scope.strip()), verdicts=[verdict("SLOWER", 1.1)])
    why = GateFailure("SLOWER", "it grew", slower.measurements[0].key)
    run = RunResults([slower], failures={slower.nodeid: Failure(str(why), (why,))})
    assert any(line.text.startswith(f"  {scope} 44.2 → 48.6 µs") for line in render(run, width=120))


def test_an_epoch_of_a_file_that_lacks_times_is_told_by_those_that_are_there():
    times = [measured(), measured(), measured(scope="end_to_end")]
    times[1:] = [structs.replace(of, summary=structs.replace(of.summary, median_ns=None)) for of in times[1:]]
    sessions = (result("cupy.exp", times[0], times[2]), result("cupy.exp", times[1], times[2]))
    record = Record(sessions[0].case.id, (Epoch("2026-11-20T10:00:00Z", sessions, "more exact"),))
    (*_, line) = epochs(record)
    assert line.text.split(", ")[2:] == ["end_to_end/event/cold –", "kernel/event/cold 48.6 µs: more exact"]
