"""Runs the scripts behind docs/explanation/evidence-log.md at a small size, as far as they need no GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")

import busy_host  # noqa: E402
import fleet_simulation  # noqa: E402
import gate_on_gpu  # noqa: E402
import gate_simulation  # noqa: E402
import rivals  # noqa: E402
from fakes import FakeEnvironment, FakeGpu, FakeTimer  # noqa: E402
from gate_kernels import gate_cases, gate_source  # noqa: E402
from gate_simulation import RULES, simulate  # noqa: E402
from nvrtc_compiler import ARCHITECTURES, compiled, needs_nvrtc  # noqa: E402

from pytest_gpukern.timers.timer import TimerUnavailable  # noqa: E402

# the gate, by simulation


@pytest.fixture(scope="module")
def rows():
    return simulate(15, seed=5, sessions=(5,))


@pytest.mark.parametrize(
    ("wanted", "most_false", "least_caught"),
    [
        ({"noise": "noisy", "rule": "gpukern", "threshold": 0.02}, 4, 0.78),
        ({"noise": "noisy", "rule": "gpukern, 3 of them appended", "threshold": 0.02}, 4, 0.78),
        ({"noise": "quiet", "change": 0.005, "threshold": 0.0025}, 0, 0.95),
        ({"noise": "quiet", "change": 0.01, "threshold": 0.005}, 0, 0.99),
        *(
            ({"noise": noise, "rule": "gpukern, two revisions in pairs", "sessions": pairs}, 3, 0.8)
            for noise, pairs in (("noisy", 2), ("noisy", 4), ("host", 2), ("host", 4), ("host, one case", 4))
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_the_gate_hardly_blames_unchanged_code_and_catches_slowdowns(rows, wanted, most_false, least_caught):
    """0.03 % of 1800 cases is half a one; five or more would come less than once in a thousand times."""
    (row,) = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    assert row.false <= most_false
    assert row.caught >= least_caught * row.slowed > 0


def test_a_smaller_threshold_blames_more_amid_noise(rows):
    at = {row.threshold: row for row in rows if (row.noise, row.rule) == ("noisy", "gpukern")}
    assert at.keys() == {0.02, 0.01, 0.005, 0.0025, 0.0}
    assert at[0.0].false >= at[0.005].false
    assert at[0.0].caught > at[0.01].caught


@pytest.mark.parametrize("rule", RULES)
def test_other_rules_blame_a_case_in_nearly_every_run(rows, rule):
    (row,) = [row for row in rows if row.rule == rule]
    assert row.false_runs >= row.runs / 2
    assert row.false > 0.005 * row.judged


def test_the_table_of_the_simulation_is_printed(capsys):
    gate_simulation.main(["--runs", "1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-4:] == ["with", "one", "change", "caught"]
    assert len(lines) > len(RULES)


# the gate, on a GPU


def test_the_sessions_of_an_h200_give_the_figures_that_are_told(capsys):
    gate_on_gpu.main(["judge", "--draws", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "unchanged, at 2.00%: 1015 judged, 9 suspected, 0 confirmed SLOWER, 725 SAME, 290 UNDECIDED; "
        "pytest-benchmark: 32 false alarms"
    )
    assert "unchanged, NVBench's compare: 0 of 90" in lines
    told = {line.partition(":")[0]: line for line in lines}
    caught = told["fma 9600 trips +1 %, cold at 0.50%"]
    assert "caught 35 of 35, drawn 20 of 20, seen from +0.58% on" in caught
    assert caught.endswith("pytest-benchmark: 1; NVBench: 45 of 45")
    assert "by time 20 of 20, by cycles 0" in lines[-2]


def test_the_recorded_kernels_are_those_that_would_be_measured():
    recorded = json.loads(gate_on_gpu.RECORDED.read_text())
    assert [gate_on_gpu.GateCase(**case) for case in recorded["cases"]] == list(gate_cases())


class FakeKernels:
    """Launches nothing; each result is right."""

    stream = "the stream"

    def __init__(self, cases):
        pass

    def launch(self, case):
        return lambda: None

    def fault(self, case):
        return None

    def close(self):
        pass


def test_what_eight_sessions_measure_can_be_judged(tmp_path, monkeypatch):
    environment = FakeEnvironment(FakeGpu())
    environment.backend = lambda name: FakeGpu()
    environment.close = lambda: None

    few = tuple(case for case in gate_cases() if case.kernel == "fma" and case.share in (0.0, 0.05))

    def in_this_process(command):
        gate_on_gpu.main(command[2:])
        return 0

    def opened(name, stream):
        if name == "cupti":
            raise TimerUnavailable("not here")
        return FakeTimer(name)

    monkeypatch.setattr(gate_on_gpu, "Environment", lambda *_: environment)
    monkeypatch.setattr(gate_on_gpu, "gate_cases", lambda: few)
    monkeypatch.setattr(gate_on_gpu, "GateKernels", FakeKernels)
    monkeypatch.setattr(gate_on_gpu, "open_timer", opened)
    monkeypatch.setattr(gate_on_gpu, "wall_clock", lambda launch: 123.0)
    monkeypatch.setattr(gate_on_gpu, "SESSIONS", 8)
    monkeypatch.setattr(gate_on_gpu.subprocess, "call", in_this_process)
    for module in (gate_on_gpu, rivals):
        monkeypatch.setattr(module, "runtime", lambda: SimpleNamespace(synchronize=lambda: None))
    gate_on_gpu.record(tmp_path / "gate.json")
    found = json.loads((tmp_path / "gate.json").read_text())
    assert len(found["sessions"]) == 8
    assert {session["default_timer"] for session in found["sessions"]} == {"event"}
    for session in found["sessions"]:
        for reading in session["readings"]:
            assert (reading["median_ns"], reading["sm_mhz"]) == (1001.0, None)
            reading["sm_mhz"] = 1980.0
    lines = list(gate_on_gpu.figures(found, draws=2))
    assert "9 judged, 0 suspected, 0 confirmed SLOWER" in lines[0], "three unchanged kernels in three trials"
    assert [line.partition(": ")[2].partition(",")[0] for line in lines[5:7]] == ["caught 0 of 3"] * 2


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_compile(architecture):
    assert compiled(gate_source(), f"sm_{architecture}").startswith(b"\x7fELF")


# other tools


def test_tools_stand_beside_cupti_with_their_cache_and_a_missing_one_says_why():
    def session(ns):
        ours = {
            f"this plugin, cupti, {cache}": {"k": factor * ns}
            for cache, factor in (("cold", 2.0), ("hot", 1.0))
        }
        return {"NVBench, cold": {"k": 3.0 * ns}, "Triton, cold": {"": "not installed"}, **ours}

    assert rivals.table([session(1000.0), session(1010.0)])[:2] == [
        "NVBench, cold: k: 3.015 µs, ×1.500 of CUPTI's, A/A 1.0%",
        "Triton, cold: : not installed",
    ]


# cards of a fleet


def test_faults_of_a_fleet_are_named_and_nothing_of_a_healthy_one():
    table = fleet_simulation.simulate(1, cards=720, heavy_tails=[False])
    assert table["normal tails, healthy"] == {"fleets": 1, "others": 0}
    faults = {"GPU-100", "GPU-300", "host88", "host9999", "bits of GPU-700"}
    assert faults <= {*table["normal tails, with faults"]}
    assert table["normal tails, with faults"]["others"] == 0


# host times beside other programs


def test_a_session_on_the_host_holds_each_figure_of_each_call():
    (figures,) = busy_host.session({"a call": lambda: None}).values()
    assert len(figures) == len(busy_host.FIGURES)
    assert busy_host.measured(figures, 2.0).summary.median_ns == 2 * figures[0] > 0
