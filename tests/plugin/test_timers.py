"""Tests which timer a run uses in each scope, and how its number is kept and judged."""

from __future__ import annotations

import json
import re

import pytest

from pytest_gpukern.baseline.codec import load

from . import fake_gpu
from .conftest import FIRST, SECOND, repeat_sessions, results_in

CUPTI, EVENT = "kernel/cupti/cold", "kernel/event/cold"


def recorded_keys(pytester):
    (stored,) = (pytester.path / "baselines").glob("*.json")
    sessions = [session for record in load(stored).cases.values() for session in record.epochs[0].sessions]
    return {tuple(sorted(timed.key for timed in session.measurements)) for session in sessions}


def measured(pytester):
    """The run file's medians of a case by key, and its verdicts."""
    result = results_in(pytester.path / "run.json")[FIRST]
    medians = {
        "/".join((each["scope"], each["timer"], each["cache"])): each["summary"]["median_ns"]
        for each in result["measurements"]
    }
    return medians, {key: verdict["kind"] for key, verdict in result["verdicts"].items()}


def test_where_cupti_works_its_number_is_kept_and_judged(with_cupti, pytester, monkeypatch):
    with_cupti("--gpukern-baseline=create").assert_outcomes(passed=2)
    assert recorded_keys(pytester) == {(CUPTI,)}
    repeat_sessions(pytester.path, 3)
    with_cupti("--gpukern-report=run.json").assert_outcomes(passed=2)
    assert measured(pytester) == ({CUPTI: pytest.approx(1000)}, {CUPTI: "SAME"})
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = with_cupti()
    result.assert_outcomes(passed=1, failed=1)
    (said,) = [line for line in result.outlines if line.startswith("SLOWER (")]
    assert said.startswith(f"SLOWER ({CUPTI}): +10.0 %")


def test_a_time_by_cupti_is_not_compared_with_what_events_recorded(gpu, monkeypatch, pytester):
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    assert recorded_keys(pytester) == {(EVENT,)}
    repeat_sessions(pytester.path, 3)
    fake_gpu.install(monkeypatch, cupti=True)
    gpu("--gpukern-report=run.json").assert_outcomes(passed=2)
    assert measured(pytester)[1] == {CUPTI: "UNCOMPARABLE"}


SCOPES = """
import pytest

pytestmark = pytest.mark.gpu_benchmark(group="mine")

def test_it(gpu_benchmark):
    gpu_benchmark(lambda: None)

@pytest.mark.gpu_benchmark(scope="launch", bytes=1000)
def test_marked(gpu_benchmark):
    gpu_benchmark(lambda: None)
"""


@pytest.mark.parametrize(
    ("options", "unmarked"),
    [
        ((), ["kernel"]),
        (("--gpukern-scope=launch",), ["launch"]),
        (("--gpukern-scope=launch,kernel",), ["kernel", "launch"]),
        (("--gpukern-scope=transfer",), ["kernel"]),
    ],
)
def test_what_a_plain_tests_launch_costs_the_host_is_measured_on_request(gpu, pytester, options, unmarked):
    pytester.makepyfile(test_doubling=SCOPES)
    gpu("--gpukern-report=run.json", "--benchmark-json=benchmark.json", *options).assert_outcomes(passed=2)
    found = [result["measurements"] for result in results_in(pytester.path / "run.json").values()]
    assert [[each["scope"] for each in measurements] for measurements in found] == [unmarked, ["launch"]]
    published = json.loads((pytester.path / "benchmark.json").read_text())
    assert published["machine_info"]["gpukern"]["device"] == "Fake GPU"
    listed = published["benchmarks"]
    assert {each["group"] for each in listed} == {"mine"}
    names = ["test_it[launch]" if scope == "launch" else "test_it" for scope in unmarked]
    assert [each["name"] for each in listed] == [*names, "test_marked[launch]"]
    (launch,) = found[1]
    assert (launch["timer"], launch["cache"], launch["traffic_bytes"]) == ("host", "hot", None)
    assert launch["invalid"] is None


def test_in_a_context_of_the_tests_own_only_launches_are_measured(gpu, monkeypatch, pytester):
    """NVIDIA's launch-latency benchmarks make one; what nobody marked is left to pytest-benchmark."""
    monkeypatch.setattr(fake_gpu, "OWN_CONTEXT", [1])
    kernel = "def test_left(benchmark):\n    benchmark(lambda: None)\n\ndef test_kernel(gpu_benchmark):\n"
    pytester.makepyfile(test_doubling=f"{kernel}    gpu_benchmark(lambda: None)\n")
    fast = ("--benchmark-max-time=0.001", "--benchmark-min-rounds=2", "--gpukern-report=run.json")
    result = gpu("--gpukern-all", *fast)
    result.assert_outcomes(passed=1, failed=1)
    reason = "a CUDA context of its own, where only scope='launch' can be measured; it is left to"
    result.stdout.fnmatch_lines([f"*test works in {reason} pytest-benchmark*"])
    result.stdout.fnmatch_lines(["*INVALID*a CUDA context of its own, where only scope='launch'*"])
    pytester.makepyfile(test_doubling=f"import pytest\n{kernel}    gpu_benchmark(lambda: None)\n")
    gpu("--gpukern-scope=launch", *fast).assert_outcomes(passed=2)
    (found,) = results_in(pytester.path / "run.json").values()
    assert [(each["scope"], each["invalid"]) for each in found["measurements"]] == [("launch", None)]


def test_a_scope_without_a_time_in_the_newest_epoch_is_judged_by_an_older_one_and_the_reason_says_so(
    with_cupti, monkeypatch, pytester
):
    with_cupti("--gpukern-baseline=create")
    fake_gpu.install(monkeypatch)  # events only
    monkeypatch.setenv("FIRST_TAKES_NS", "1500")
    with_cupti("--gpukern-baseline=update", "--gpukern-reason=x", "-k", "first").assert_outcomes(
        passed=1, deselected=1
    )
    fake_gpu.install(monkeypatch, cupti=True)
    monkeypatch.setenv("FIRST_TAKES_NS", "1000")
    with_cupti("--gpukern-report=run.json").assert_outcomes(passed=2)
    found = results_in(pytester.path / "run.json")
    first, second = (found[case]["verdicts"][CUPTI]["reason"] for case in (FIRST, SECOND))
    assert re.search(rf"; judged by an older epoch, because that of \d{{4}}-\d\d-\d\d has no {CUPTI}$", first)
    assert "older epoch" not in second
