"""What a run measured in pytest-benchmark's JSON, table, saved files and comparison."""

import json

import pytest

from .conftest import FIRST, GPU_PROBLEM
from .test_existing_suites import CONFTEST, benchmarks_of

PLAIN = """
import pytest
from pytest_gpukern.benchmark_interop.pytest_benchmark import session_of

class TestIt:
    @pytest.mark.gpu_benchmark(group="mine")
    @pytest.mark.parametrize("case", ["x::y[1]"])
    def test_odd(self, gpu_benchmark, case):
        gpu_benchmark(int)

def test_other(request):
    assert session_of(request.config).benchmarks == []
"""
ODD = "test_plain.py::TestIt::test_odd[x::y[1]]"
CASE = f"test_doubling[{FIRST}]"
KERNEL, TRANSFER = f"test_doubling.py::{CASE}", f"test_doubling.py::{CASE}[transfer]"
ONLY = ("-k", "first", "--benchmark-columns=median")


@pytest.fixture(autouse=True)
def _of_a_made_up_machine(gpu, pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_plain=PLAIN)


def test_the_json_holds_seconds_of_one_call_and_what_they_mean(gpu, pytester):
    ran = gpu("-k", "first or odd or other", "--benchmark-json=out.json", "--gpukern-scope=kernel,transfer")
    ran.assert_outcomes(passed=3)
    assert "automatically disabled" not in ran.stdout.str() + ran.stderr.str()
    found = benchmarks_of(pytester)
    assert set(found) == {KERNEL, TRANSFER, ODD}, "names do not depend on which scopes were measured"
    odd, kernel = found[ODD], found[KERNEL]
    assert (odd["name"], odd["param"], odd["group"]) == ("test_odd[x::y[1]]", "x::y[1]", "mine")
    assert (kernel["name"], kernel["param"], kernel["group"]) == (CASE, FIRST, "doubling")
    assert kernel["params"] == {"n": 8, "backend": "numba", "variant": "first"}
    stats = kernel["stats"]
    assert stats["median"] == pytest.approx(1e-6)
    assert stats["rounds"] == len(stats["data"]) >= 10
    assert (stats["ops"], stats["iterations"]) == (pytest.approx(1e6, rel=1e-3), 1)
    info = kernel["extra_info"]
    assert (info["gpukern_schema"], info["problem_version"], info["correctness"]) == (1, 1, "PASSED")
    assert (info["scope"], info["timer"], info["cache"]) == ("kernel", "event", "cold")
    assert info["gb_per_s"] == pytest.approx(0.128)
    assert (info["verdict"], info["verdict_reason"]) == ("NEW", "nothing recorded yet")
    assert (info["gflop_per_s"], info["verdict_ratio"]) == (None, None)
    assert info["warnings"] == ["timed by events, not by CUPTI: cupti-python is not installed"]
    machine = json.loads((pytester.path / "out.json").read_text())["machine_info"]["gpukern"]
    assert (machine["device"], machine["compute_capability"], info["device"]) == (
        "Fake GPU",
        [9, 0],
        "Fake GPU",
    )
    assert machine.keys() == {"device", "compute_capability", "driver", "cuda", "libraries"}


def test_a_rate_of_operations_and_the_ratio_of_a_verdict_are_told(gpu, pytester, monkeypatch):
    flops = GPU_PROBLEM.replace("traffic_bytes=", "flops=lambda n: 8 * n,\n    traffic_bytes=")
    pytester.makepyfile(test_doubling=flops)
    gpu(*ONLY, "--gpukern-baseline=create")
    monkeypatch.setenv("FIRST_TAKES_NS", "2000")
    gpu(*ONLY, "--benchmark-json=out.json")
    info = benchmarks_of(pytester)[KERNEL]["extra_info"]
    assert (info["verdict"], info["verdict_ratio"]) == ("SLOWER", pytest.approx(2))
    assert info["gflop_per_s"] == pytest.approx(0.032)


def test_what_is_invalid_or_wrong_is_not_published(gpu, pytester, monkeypatch):
    monkeypatch.setenv("FIRST_ESCAPES", "work ran elsewhere")
    pytester.makepyfile(
        test_wrong="def test_wrong(gpu_benchmark): gpu_benchmark.verify(gpu_benchmark(int), 1)"
    )
    ran = gpu("-k", "first or odd or wrong", "--benchmark-json=out.json", "--gpukern-scope=kernel,transfer")
    ran.assert_outcomes(passed=1, failed=2)
    assert set(benchmarks_of(pytester)) == {ODD, TRANSFER}


@pytest.mark.parametrize(
    ("option", "scope", "entry"),
    [("--benchmark-autosave", "kernel", KERNEL), ("--benchmark-save=mine", "transfer", TRANSFER)],
)
def test_what_is_saved_has_an_entry_each(gpu, pytester, option, scope, entry):
    gpu("-k", "first", option, f"--gpukern-scope={scope}")
    (saved,) = pytester.path.rglob(".benchmarks/**/*.json")
    assert set(benchmarks_of(pytester, saved)) == {entry}


def test_a_saved_run_is_compared_with_the_next(gpu, monkeypatch):
    gpu(*ONLY, "--benchmark-save=first")
    monkeypatch.setenv("FIRST_TAKES_NS", "2000")
    ran = gpu(*ONLY, "--benchmark-compare", "--benchmark-compare-fail=median:5%")
    assert ran.ret != 0
    text = ran.stdout.str()
    for part in (f"{CASE} (0001_first) ", f"{CASE} (NOW) ", "(2.00)"):
        assert part in text
    ran.stderr.no_fnmatch_line("*machine_info is different*")


def test_a_saved_time_under_another_cache_policy_is_not_compared(gpu):
    gpu(*ONLY, "--benchmark-save=cold", "--gpukern-scope=kernel,transfer")
    ran = gpu(*ONLY, "--benchmark-compare", "--gpukern-scope=kernel,transfer", "--gpukern-cache=hot")
    name = CASE.replace("[", "[[]")
    assert f"{CASE} (0001_cold)" not in ran.stdout.str()
    ran.stderr.fnmatch_lines([f"gpukern: {name}*: not compared: cache was 'cold', is 'hot'"])


@pytest.mark.parametrize(("option", "passed"), [("--benchmark-skip", 1), ("--benchmark-only", 3)])
def test_benchmark_skip_and_only_select_our_tests_and_no_others(gpu, option, passed):
    gpu(option, "-W", "ignore").assert_outcomes(passed=passed, skipped=4 - passed)


def test_disabling_pytest_benchmark_keeps_our_times_out_of_it(gpu, pytester):
    ran = gpu("--benchmark-disable", "--benchmark-json=out.json")
    ran.assert_outcomes(passed=4)
    assert not (pytester.path / "out.json").exists()
    ran.stdout.no_fnmatch_line("*benchmark 'mine'*")
