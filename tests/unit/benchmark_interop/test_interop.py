"""Results → pytest-benchmark's JSON, table, saved files and comparison."""

from __future__ import annotations

import json
import math

import pytest
from made_up_results import measured, result, verdict
from made_up_runs import write_run_file

from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import Correctness

CONFTEST = """
import dataclasses, pathlib, pytest
from pytest_gpukern.benchmark_interop.pytest_benchmark import counted_as_benchmarks
from pytest_gpukern.benchmark_interop.pytest_benchmark import machine_info as describe
from pytest_gpukern.benchmark_interop.publishing import write
from pytest_gpukern.report.run_file import read_run

RUN = read_run(pathlib.Path(__file__).with_name("run.json"))

@pytest.fixture
def gpu_benchmark():
    pass

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    with counted_as_benchmarks(config, items):
        return (yield)

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    entries = {
        r.nodeid: {
            "group": "mine" if "grouped" in r.nodeid else None, "params": r.case.point | r.case.parameters
        }
        for r in RUN.results
    }
    if not hasattr(session.config, "workerinput"):
        write(dataclasses.replace(RUN, entries=entries), session.config)
    return (yield)

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info():
    return {"node": "made up"}  # the real one takes a second

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_commit_info():
    return {"id": None}

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info):
    machine_info.update(describe(RUN.results[0].fingerprint))
"""

TESTS = """
import pytest

@pytest.mark.parametrize("case", ["vector_exp/cupy.exp/n=1000"])
def test_exp(gpu_benchmark, case):
    pass

def test_grouped(gpu_benchmark):
    pass

def test_other():
    pass
"""

WITHOUT = ("-p", "no:gpukern", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # the last is slow
EXP = "test_exp[vector_exp/cupy.exp/n=1000]"
TRANSFER = {"scope": "transfer", "timer": "host"}


def exp_result(median_ns=2000.0, **changes):
    return result(
        "cupy.exp",
        measured(median_ns, traffic_bytes=8000.0, iterations=4, notes=(Note("odd", About.NOISE),), **changes),
        measured(9000.0, **TRANSFER),
        verdicts=[verdict("SLOWER", 1.05)],
        notes=(Note("a peer was busy"),),
        nodeid=f"test_it.py::{EXP}",
    )


def grouped_result():
    return result("test_grouped", measured(500.0), point={}, nodeid="test_it.py::test_grouped")


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a suite with options, which publishes made-up results of its tests."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # where these tests run under xdist themselves
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TESTS)

    def run(*options, results=None):
        write_run_file(pytester.path / "run.json", RunResults(results or [exp_result(), grouped_result()]))
        (pytester.path / "out.json").unlink(missing_ok=True)
        return pytester.runpytest(*WITHOUT, *options)

    run.path = pytester.path
    return run


def benchmarks_of(suite):
    def refuse(token):
        raise AssertionError(f"{token} in the JSON")

    data = json.loads((suite.path / "out.json").read_text(), parse_constant=refuse)
    return {benchmark["fullname"]: benchmark for benchmark in data["benchmarks"]}


@pytest.mark.parametrize(
    ("option", "published"), [("-q", False), ("--benchmark-sort=name", True), ("--benchmark-autosave", True)]
)
def test_entries_are_made_only_where_pytest_benchmark_saves_compares_or_shows_them(suite, option, published):
    ran = suite(option)
    ran.assert_outcomes(passed=3)
    assert ("benchmark 'mine': 1 tests" in ran.stdout.str()) == published


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_every_measurement_is_in_the_json_and_in_the_table(suite, workers):
    ran = suite(workers, "--benchmark-json=out.json")
    ran.assert_outcomes(passed=3)
    assert "automatically disabled" not in ran.stdout.str() + ran.stderr.str()
    assert set(benchmarks_of(suite)) == {
        f"test_it.py::{EXP}",
        f"test_it.py::{EXP}[transfer]",
        "test_it.py::test_grouped",
    }
    ran.stdout.fnmatch_lines(["*benchmark 'mine': 1 tests*", "test_grouped *"])
    ran.stdout.fnmatch_lines(
        ["*benchmark 'vector_exp': 2 tests*", f"{EXP.replace('[', '[[]')} *", "*[[]transfer[]] *"]
    )


def test_the_json_holds_seconds_of_one_call_and_what_they_mean(suite):
    suite("-n0", "--benchmark-json=out.json")
    found = benchmarks_of(suite)[f"test_it.py::{EXP}"]
    assert found["name"] == EXP
    assert found["group"] == "vector_exp"
    assert found["param"] == "vector_exp/cupy.exp/n=1000"
    assert found["params"] == {"n": 1000}
    stats = found["stats"]
    assert stats["median"] == pytest.approx(2e-6)
    assert stats["rounds"] == len(stats["data"]) == 10
    assert stats["iterations"] == 4
    assert stats["ops"] == pytest.approx(5e5)
    assert stats["total"] == pytest.approx(2e-5)
    info = found["extra_info"]
    assert info["gpukern_schema"] == 1
    assert (info["scope"], info["timer"], info["cache"]) == ("kernel", "event", "cold")
    assert info["gb_per_s"] == pytest.approx(4.0)
    assert (info["verdict"], info["verdict_ratio"]) == ("SLOWER", 1.05)
    assert info["warnings"] == ["odd", "a peer was busy"]
    assert (info["device"], info["driver"]) == ("NVIDIA H200", "580.159")


def test_what_has_no_valid_time_is_not_published(suite):
    results = [
        result(
            "cupy.exp", measured(invalid="impossible"), measured(9000.0, **TRANSFER), nodeid=f"t.py::{EXP}"
        ),
        result("x.y", measured(), correctness=Correctness.INCORRECT, nodeid="t.py::test_grouped"),
        result("x.y", measured(), simulated=True, nodeid="t.py::test_other"),
    ]
    suite("-n0", "--benchmark-json=out.json", results=results)
    assert set(benchmarks_of(suite)) == {f"t.py::{EXP}[transfer]"}


def test_empty_samples_and_numbers_that_are_not_finite_never_reach_it(suite):
    broken = measured(samples_ns=(math.nan, math.inf))
    odd = measured(samples_ns=(1000.0, math.nan), traffic_bytes=math.inf, scope="transfer")
    results = [
        result("cupy.exp", broken, odd, nodeid=f"t.py::{EXP}"),
        result("x.y", measured(samples_ns=()), nodeid="t.py::test_other"),
    ]
    ran = suite("-n0", "--benchmark-json=out.json", results=results)
    assert ran.ret == 0
    (found,) = benchmarks_of(suite).values()
    assert found["stats"]["data"] == [pytest.approx(1e-6)]
    assert found["extra_info"]["gb_per_s"] is None


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_saved_run_is_compared_with_the_next(suite, workers):
    suite(workers, "--benchmark-save=first")
    compare = ("--benchmark-compare", "--benchmark-columns=median", "--benchmark-compare-fail=median:5%")
    ran = suite(workers, *compare, results=[exp_result(4000.0)])
    assert ran.ret != 0
    text = ran.stdout.str()
    assert f"{EXP} (0001_first) " in text
    assert f"{EXP} (NOW) " in text
    assert "(2.00)" in text
    ran.stderr.no_fnmatch_line("*machine_info is different*")


def test_a_saved_time_under_another_cache_policy_is_not_compared(suite):
    suite("-n0", "--benchmark-save=cold")
    hot = exp_result(1000.0, cache="hot")
    ran = suite("-n0", "--benchmark-compare", "--benchmark-columns=median", results=[hot])
    assert f"{EXP} (0001_cold)" not in ran.stdout.str()
    assert f"{EXP}[transfer] (0001_cold)" in ran.stdout.str()
    ran.stderr.fnmatch_lines(
        [f"gpukern: {EXP.replace('[', '[[]')}: not compared: cache was 'cold', is 'hot'"]
    )


def test_names_are_unique_and_do_not_depend_on_which_scopes_were_measured(suite):
    odd = "a/test_it.py::TestIt::test_odd[x::y[1]]"
    alone = result("cupy.exp", measured(9000.0, **TRANSFER), nodeid=f"t.py::{EXP}")
    host = result("host.numpy", measured(scope="end_to_end", timer="host"), nodeid="t.py::test_other")
    both = result("cupy.exp", measured(), measured(9000.0, **TRANSFER), nodeid=odd)
    suite("-n0", "--benchmark-json=out.json", results=[alone, host, both])
    found = benchmarks_of(suite)
    assert set(found) == {f"t.py::{EXP}[transfer]", "t.py::test_other", odd, f"{odd}[transfer]"}
    assert (found[odd]["name"], found[odd]["param"]) == ("test_odd[x::y[1]]", "x::y[1]")


@pytest.mark.parametrize(
    ("group_by", "titles"),
    [
        ("func", {"'test_exp'", "'test_grouped'", "'test_other'"}),
        ("group,param", {"'vector_exp vector_exp/cupy.exp/n=1000'", "'mine'", "'vector_exp'"}),
        ("param:block", {"'block=None'", "'block=128'"}),
    ],
)
def test_grouping_works_although_cases_have_different_axes(suite, group_by, titles):
    block = result("a.b", measured(), parameters={"block": 128}, nodeid="test_it.py::test_other")
    ran = suite("-n0", f"--benchmark-group-by={group_by}", results=[exp_result(), grouped_result(), block])
    lines = [line for line in ran.outlines if " benchmark " in line]
    assert {line.partition(" benchmark ")[2].rpartition(": ")[0] for line in lines} == titles


def test_benchmark_skip_and_only_select_our_tests_and_no_others(suite):
    suite("-n0", "--benchmark-skip").assert_outcomes(passed=1, skipped=2)
    suite("-n0", "--benchmark-only", "--benchmark-json=out.json").assert_outcomes(passed=2, skipped=1)
    assert len(benchmarks_of(suite)) == 3


def test_disabling_pytest_benchmark_keeps_our_times_out_of_it(suite):
    ran = suite("-n0", "--benchmark-disable", "--benchmark-json=out.json")
    ran.assert_outcomes(passed=3)
    assert not (suite.path / "out.json").exists()
    ran.stdout.no_fnmatch_line("*benchmark 'mine'*")


def test_the_machine_info_names_device_driver_cuda_and_libraries(suite):
    suite("-n0", "--benchmark-json=out.json")
    data = json.loads((suite.path / "out.json").read_text())
    assert data["machine_info"]["gpukern"] == {
        "device": "NVIDIA H200",
        "compute_capability": [9, 0],
        "driver": "580.159",
        "cuda": "13.0",
        "libraries": {"cupy": "14.0"},
    }
