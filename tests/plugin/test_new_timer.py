"""A new timer of the host is one file in `timers/` and one row in the table; nothing else is touched."""

import functools

import pytest

from pytest_gpukern.report.run_file import read_run

from .conftest import HOST_PROBLEM

ROW = """
from pathlib import Path
import pytest_gpukern.timers
from pytest_gpukern.values.timer_table import TIMERS

pytest_gpukern.timers.__path__.append(str(Path(__file__).parent / "library"))
TIMERS["ticks"] = TIMERS["host"]._replace(
    timer_class="pytest_gpukern.timers.ticks:TicksTimer", label="ticks"
)
"""

TIMER = """
import functools
import itertools
from pytest_gpukern.timers.host import HostTimer

class TicksTimer(HostTimer):
    name = "ticks"

    clock_ns = functools.partial(next, itertools.count(step=50_000))
"""

TESTS = """
def test_call(gpu_benchmark):
    gpu_benchmark(np.ones, 9)

def test_rounds(gpu_benchmark):
    gpu_benchmark.pedantic(np.ones, (9,), rounds=3)

@pytest.mark.gpu_benchmark
def test_of_another_plugin(benchmark):
    benchmark.pedantic(np.ones, (9,), rounds=5)
"""


@pytest.fixture
def run(beside_a_row):
    """Runs the tests where there is no GPU, beside a timer of the host that reads 50 µs a sample."""
    run = beside_a_row("timers", {"ticks": TIMER}, ROW, test_it=HOST_PROBLEM + TESTS)
    one = ("--gpukern-axis=n=8", "-k", "not add")
    return functools.partial(run, "--gpu-benchmark", "--gpukern-report=run.json", *one)


@pytest.mark.parametrize("simulator", ["never", "auto"])
def test_it_times_cases_and_calls_where_there_is_no_gpu(run, pytester, simulator):
    run("--gpukern-timer=ticks", f"--gpukern-simulator={simulator}").assert_outcomes(passed=4, deselected=1)
    results = read_run(pytester.path / "run.json").results
    times = [measurement for result in results for measurement in result.measurements]
    assert [time.key for time in times] == ["end_to_end/ticks/hot"] * 4
    assert {time.summary.median_ns for time in times} == {50_000}
    assert [result.case.on_gpu for result in results] == [False] * 4


def test_a_run_that_does_not_ask_for_it_is_timed_by_the_hosts_clock(run, pytester):
    run("--gpukern-simulator=never").assert_outcomes(passed=1, skipped=3, deselected=1)
    (result,) = (one for one in read_run(pytester.path / "run.json").results if one.measurements)
    assert result.measurements[0].key == "end_to_end/host/hot"
