"""Checks `gpukern selftest`: which tests it runs, and that each fails if a timer is wrong."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpukern.cli import main as cli
from pytest_gpukern.cli import selftest as command
from pytest_gpukern.timers.timer import Batch
from suites import selftest

PROJECT = Path(__file__).parents[2]
BEYOND_NS, GAP_NS, EVENT_COST_NS, REPLAY_NS = 704.0, 40.0, 2_760.0, 25.0
TAKES_NS = {"copy": 120_000.0, "fma": 200_000.0}


def launch(ns):
    """A launch that takes so long on the device; a spin is `BEYOND_NS` longer than it says."""
    return SimpleNamespace(ns=ns)


class Spinning:
    def __init__(self):
        self.own = {}

    def call(self, ns, slot=0):
        self.own[slot] = ns + 16 * slot
        return launch(self.own[slot] + BEYOND_NS)

    def own_ns(self, count):
        return [self.own[slot] for slot in range(count)]


class Timer:
    """Reads what a launch takes and a fixed cost; `factor` and `drift` say how it is wrong."""

    def __init__(self, name, more_ns, stated_ns=None, *, factor=1.0, drift=1.0):
        self.name, self.more_ns, self.fixed_cost_ns = name, more_ns, stated_ns
        self.factor, self.drift = factor, drift

    def collect(self, iterations, *, cold):
        assert not cold
        self.factor *= self.drift
        return Batch([self.factor * iteration.run.ns + self.more_ns for iteration in iterations])

    def node_time_ns(self, iteration):
        return self.factor * iteration.run.ns + GAP_NS


def machine(cupti=None, event=None, graph=None):
    """A machine as good as promised but for what is said of a timer."""
    timers = {
        "cupti": Timer("cupti", **{"more_ns": 0.0, **(cupti or {})}),
        "event": Timer(
            "event", **{"more_ns": GAP_NS + EVENT_COST_NS, "stated_ns": EVENT_COST_NS, **(event or {})}
        ),
    }
    slower = {"more_ns": GAP_NS + REPLAY_NS, "stated_ns": REPLAY_NS, **(graph or {})}
    kernels = {name: launch(ns) for name, ns in TAKES_NS.items()}
    return selftest.Machine(timers, Timer("graph", **slower), Spinning(), kernels)


TESTS = {name: test for name, test in vars(selftest).items() if name.startswith("test_")}
SPINS, NODES, EVENTS, GRAPHS, REPEATS = TESTS


def failed(on):
    """Test → the first line of what it complains of, by kernel where it is about one."""
    complaints = {}
    for name, test in TESTS.items():
        kernels = ({"kernel": kernel} for kernel in TAKES_NS)
        for about in kernels if name in (GRAPHS, REPEATS) else [{}]:
            try:
                test(on, **about)
            except AssertionError as error:
                complaints.setdefault(name, []).append(str(error).splitlines()[0])
    return complaints


def test_timers_as_good_as_promised_pass(capsys):
    assert failed(machine()) == {}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 + 2 + 2 + 2 + 2
    assert "spin 1500 ns − 500 ns: 1000.0 ns known, +0.0 ns read beyond it, 32.0 ns allowed" in lines


@pytest.mark.parametrize(
    ("wrong", "fail"),
    [
        ({"cupti": {"factor": 1.02}}, {SPINS, NODES, GRAPHS}),
        ({"cupti": {"drift": 1.03}}, {SPINS, NODES, GRAPHS, REPEATS}),
        (
            {"cupti": {"more_ns": 1_000.0}},
            set(),
        ),  # a constant is none of a difference, and little of a kernel
        ({"event": {"stated_ns": EVENT_COST_NS + 250}}, {EVENTS}),
        ({"event": {"stated_ns": None}}, {EVENTS}),
        ({"event": {"factor": 1.02}}, {EVENTS}),
        ({"graph": {"factor": 1.02}}, {NODES, EVENTS, GRAPHS}),
        ({"graph": {"more_ns": 3_000.0}}, {GRAPHS}),
    ],
)
def test_a_timer_that_is_wrong_fails_the_tests_that_can_see_it(wrong, fail):
    assert set(failed(machine(**wrong))) == fail


@pytest.mark.parametrize(
    ("truth_ns", "off_ns", "passes"),
    [
        (1_000.0, 32.0, True),
        (1_000.0, -32.0, True),
        (1_000.0, 33.0, False),
        (20_000.0, 200.0, True),
        (20_000.0, -201.0, False),
    ],
)
def test_a_reading_may_be_off_by_one_percent_or_a_tick(truth_ns, off_ns, passes):
    readings = [selftest.Reading("a spin", truth_ns, truth_ns + off_ns)]
    with nullcontext() if passes else pytest.raises(AssertionError, match=f"a spin: {truth_ns} ns known, "):
        selftest.hold(readings, tick_ns=32.0)
    with pytest.raises(AssertionError, match="nothing was read"):
        selftest.hold([])


@pytest.fixture
def run(monkeypatch, tmp_path, capfd):
    """Runs the command with a self-test of one line, as if there were a GPU; returns status and output."""
    suites = tmp_path / "suites"
    suites.mkdir()
    monkeypatch.setattr("pytest_gpukern.cli.suites.suites_folder", lambda: suites)
    monkeypatch.setattr(command, "missing_gpu_reason", lambda environ: None)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p fake_gpu")

    def started(line, *options):
        suites.joinpath("test_more.py").write_text("def test_of_a_suite():\n    assert False\n")
        suites.joinpath("selftest.py").write_text(f"def test_it(gpu_device):\n    {line}\n")
        status = cli.main(["selftest", *options])
        return status, capfd.readouterr().out

    return started


def test_it_runs_the_self_test_alone_shows_what_that_printed_and_ends_with_pytests_status(run):
    status, out = run("print('32 ns', 'allowed')")
    assert (status, "32 ns allowed" in out, "1 passed" in out) == (0, True, True)
    status, out = run("assert False, 'off by 33 ns'", "-q")
    assert (status, "off by 33 ns" in out) == (1, True)
    assert run("pass", "--gpukern-simulator=always")[0] == 0, "the simulator stays off"


def test_without_a_gpu_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(command, "missing_gpu_reason", lambda environ: "no NVIDIA driver library")
    assert cli.main(["selftest"]) == 1
    told = "gpukern selftest: no GPU: no NVIDIA driver library; without one no timer can be tested\n"
    assert capsys.readouterr() == ("", told)


def test_the_suites_do_without_it_and_without_a_gpu_each_of_its_tests_says_why_it_is_skipped(pytester):
    options = ("-p", "no:cacheprovider", f"--rootdir={PROJECT}", "-c", os.devnull)
    collected = pytester.runpytest_subprocess(PROJECT / "suites", "--collect-only", "-q", *options)
    assert "test_vector_exp" in collected.stdout.str()
    assert "selftest" not in collected.stdout.str()
    for option, reason in (("never", "no GPU: *"), ("always", "no GPU: the simulator has no time")):
        simulator = f"--gpukern-simulator={option}"
        result = pytester.runpytest_subprocess(PROJECT / "suites/selftest.py", "-rs", simulator, *options)
        result.assert_outcomes(skipped=7)
        result.stdout.fnmatch_lines([f"SKIPPED * {reason}"])
