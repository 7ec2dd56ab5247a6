"""Checks that results travel on the test report as plain JSON, and that only the controller writes."""

import json

import pytest
from made_up_runs import whole_run

from .conftest import results_in

SPY = """
import json
import os
from pytest_gpukern.values import atomic_file as file

log = os.environ["SPY_LOG"]
replace = file.replace

def noted(path, content):
    with open(log, "a") as lines:
        print(os.environ.get("PYTEST_XDIST_WORKER", "controller"), path.name, file=lines)
    replace(path, content)

file.replace = noted

def pytest_runtest_logreport(report):
    carried = getattr(report, "gpukern", None)
    if carried is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        assert json.loads(json.dumps(carried, allow_nan=False)) == carried, "not plain JSON"
        if report.when == "call":
            print("CARRIED", carried["id"])
"""
"""Notes who writes a baseline, and checks in the controller what a report carries."""


@pytest.fixture
def run(host, pytester, monkeypatch):
    """Measures the host problem with `workers` of xdist; returns the run's results."""
    pytester.makeconftest(SPY)
    monkeypatch.setenv("SPY_LOG", str(pytester.path / "spy.log"))

    def measure(workers, *options):
        report = f"--gpukern-report=run{workers}.json"
        result = host("--gpu-benchmark", "-s", f"-n{workers}", report, *options)
        result.assert_outcomes(passed=4)
        assert result.stdout.str().count("CARRIED doubling/host.") == 4
        return results_in(pytester.path / f"run{workers}.json")

    return measure


def test_the_same_results_arrive_with_and_without_workers_as_plain_json_under_the_same_ids(run, pytester):
    alone, shared = run(0), run(2)
    cases = [f"doubling/host.{variant}/n={n}" for variant in ("add", "multiply") for n in (8, 9)]
    assert sorted(alone) == sorted(shared) == cases
    for case_id, result in alone.items():
        other = shared[case_id]
        assert other.keys() == result.keys()
        measured = {"measurements", "first_call_ns", "session", "duration_s"}
        assert {k: v for k, v in other.items() if k not in measured} == {
            k: v for k, v in result.items() if k not in measured
        }
        assert [m["scope"] for m in other["measurements"]] == [m["scope"] for m in result["measurements"]]
        assert all(len(m["samples_ns"]) >= 10 for m in other["measurements"])
    for workers in (0, 2):
        stored = whole_run(pytester.path / f"run{workers}.json")
        assert {"starting", "preparing", "checking", "timing", "reports"} <= stored["spent_s"].keys()
        together_s = sum(stored["spent_s"].values())
        if workers:
            assert together_s == pytest.approx(workers * stored["duration_s"])
        else:
            assert together_s <= stored["duration_s"]


def test_a_baseline_is_written_once_by_the_controller_whatever_the_workers_measured(run, pytester):
    run(2, "--gpukern-baseline=create")
    (path,) = (pytester.path / "baselines").iterdir()
    assert len(json.loads(path.read_text())["records"]) == 4
    written = (pytester.path / "spy.log").read_text().splitlines()
    assert sorted(written) == [f"controller {path.name}", "controller run2.json"]


def test_skips_and_failures_travel_as_well(host, pytester):
    pytester.makepyfile(
        test_doubling=pytester.path.joinpath("test_doubling.py").read_text()
        + """
@doubling.variant("host", max_size={"n": 8})
def limited(x, y):
    return lambda: np.add(x, 1, out=y)
"""
    )
    result = host("-n1", "--gpukern-report=run.json")
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["1 skipped: too large: n=9, *(doubling/host.limited/n=9)"])
    result.stdout.fnmatch_lines(["gpukern: 4 passed, 1 incorrect, 1 skipped (too large)"])
    assert results_in(pytester.path / "run.json")["doubling/host.limited/n=8"]["correctness"] == "INCORRECT"
