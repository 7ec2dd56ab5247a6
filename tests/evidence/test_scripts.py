"""Runs the scripts behind docs/explanation/evidence.md at a small size, as far as they need no GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")

import fleet_simulation  # noqa: E402
import gate_on_gpu  # noqa: E402
import gate_simulation  # noqa: E402
import rivals  # noqa: E402
from fakes import FakeEnvironment, FakeGpu, FakeTimer  # noqa: E402
from gate_kernels import PLANTED_SHARES, gate_cases, gate_source, in_session_order  # noqa: E402
from gate_simulation import NOISY, QUIET, RULES, draw, simulate  # noqa: E402
from nvrtc_compiler import KNOWN, compiled, needs_nvrtc  # noqa: E402

from pytest_gpukern.timers.timer import TimerUnavailable  # noqa: E402

# the gate, by simulation


@pytest.fixture(scope="module")
def rows():
    return simulate(15, seed=5, sessions=(5,))


def row_of(rows, **wanted):
    (found,) = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    return found


def test_unchanged_code_is_hardly_ever_confirmed_slower(rows):
    """0.03 % of 1800 cases is half a one; five or more would come less than once in a thousand times."""
    row = row_of(rows, noise="noisy", rule="gpukern", threshold=0.02)
    assert (row.runs, row.judged) == (15, 1800)
    assert row.false <= 4
    assert row.false_runs <= row.false


def test_a_smaller_threshold_blames_more_amid_that_noise(rows):
    at = {row.threshold: row for row in rows if (row.noise, row.rule) == ("noisy", "gpukern")}
    assert at.keys() == {0.02, 0.01, 0.005, 0.0025, 0.0}
    assert at[0.0].false >= at[0.005].false
    assert at[0.0].caught > at[0.01].caught


@pytest.mark.parametrize("rule", ["gpukern", "gpukern, 3 of them appended"])
def test_a_slowdown_of_five_per_cent_is_caught_in_most_cases_amid_that_noise(rows, rule):
    row = row_of(rows, noise="noisy", rule=rule, threshold=0.02)
    assert 0.78 < row.caught / row.slowed < 0.95


@pytest.mark.parametrize(("change", "threshold", "share"), [(0.005, 0.0025, 0.95), (0.01, 0.005, 0.99)])
def test_small_slowdowns_of_quiet_kernels_are_caught_and_no_neighbour_is_blamed(
    rows, change, threshold, share
):
    row = row_of(rows, noise="quiet", change=change, threshold=threshold)
    assert row.caught >= share * row.slowed
    assert row.false == 0


@pytest.mark.parametrize("rule", RULES)
def test_other_rules_blame_a_case_in_nearly_every_run(rows, rule):
    row = row_of(rows, rule=rule)
    assert row.false_runs >= row.runs / 2
    assert row.false > 0.005 * row.judged


@pytest.mark.parametrize(
    ("noise", "pairs"), [("noisy", 2), ("noisy", 4), ("host", 2), ("host", 4), ("host, one case", 4)]
)
def test_pairs_of_two_revisions_hold_the_same_line(rows, noise, pairs):
    """Planted are +5 % in kernels, and twice the time on a host."""
    row = row_of(rows, noise=noise, rule="gpukern, two revisions in pairs", sessions=pairs)
    assert row.false <= 3
    assert row.caught > 0.8 * row.slowed


def test_the_noise_is_as_it_says():
    rng = np.random.default_rng(1)
    medians = np.log(np.median(draw(QUIET, 400, rng), axis=2))
    spread = medians.std(axis=0)
    assert 0.00008 < spread.min() < spread.max() < 0.002
    spread = np.log(np.median(draw(NOISY, 400, rng), axis=2)).std(axis=0)
    assert 0.005 < np.median(spread) < 0.009


def test_the_table_is_printed_and_the_same_seed_gives_the_same(capsys):
    gate_simulation.main(["--runs", "1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-4:] == ["with", "one", "change", "caught"]
    again = simulate(1)
    assert [line.split()[-2] for line in lines] == [f"{100 * row.caught / row.slowed:.3g}" for row in again]


# the gate, on a GPU


@pytest.fixture(scope="module")
def recorded():
    return json.loads(gate_on_gpu.RECORDED.read_text())


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


def test_in_order_every_session_behind_the_record_is_judged_once_and_confirmed_by_the_next_two():
    trials = gate_on_gpu.in_order(10)
    assert [trial.candidate for trial in trials] == [5, 6, 7, 8, 9]
    assert {trial.record for trial in trials} == {(0, 1, 2, 3, 4)}
    assert [trial.fresh for trial in trials] == [(6, 7), (7, 8), (8, 9), (9, 5), (5, 6)]


def test_drawn_trials_use_a_session_once_each_and_are_the_same_every_time():
    trials = gate_on_gpu.drawn(12, 50)
    assert all(len({*trial.record, trial.candidate, *trial.fresh}) == 8 for trial in trials)
    assert gate_on_gpu.drawn(12, 50) == trials


@pytest.mark.parametrize(("current", "fails"), [(102.0, False), (102.001, True), (90.0, False)])
def test_pytest_benchmark_fails_above_its_percentage(current, fails):
    from pytest_benchmark.utils import PercentageRegressionCheck

    assert gate_on_gpu.median_failed(100.0, current, 0.02) is fails
    theirs = PercentageRegressionCheck("median", 2.0).fails({"median": current}, {"median": 100.0})
    assert bool(theirs) is fails


@pytest.mark.parametrize(
    ("current", "noise", "slow"),
    [(101.0, 0.02, False), (101.0, 0.009, True), (99.0, 0.009, False), (101.0, 0.5, False)],
)
def test_nvbench_says_slow_where_the_mean_grew_by_more_than_the_smaller_deviation(current, noise, slow):
    stored = {"mean_ns": 100.0, "noise": 0.1 if noise < 0.1 else 0.011}
    assert gate_on_gpu.nvbench_slow(stored, {"mean_ns": current, "noise": noise}) is slow


def test_the_recorded_kernels_are_those_that_would_be_measured(recorded):
    cases = gate_cases()
    assert [gate_on_gpu.GateCase(**case) for case in recorded["cases"]] == list(cases)
    by_id = {case.id: case for case in cases}
    planted = [case for case in cases if case.base]
    assert len(planted) == 3 * len(PLANTED_SHARES)
    assert all(case.size / by_id[case.base].size == 1 + case.share for case in planted)


def test_sessions_measure_every_case_once_and_no_place_in_a_family_is_always_the_same_one_s():
    cases = gate_cases()
    orders = [in_session_order(cases, number) for number in range(5)]
    assert all(sorted(order, key=cases.index) == list(cases) for order in orders)
    family = {case.id for case in cases if "fma 9600 trips, cold" in (case.id, case.base)}
    assert {next(case.id for case in order if case.id in family) for order in orders} == family


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
@pytest.mark.parametrize("architecture", [75, 80, 90, 100, 120])
def test_the_kernels_compile(architecture):
    if architecture not in KNOWN:
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    assert compiled(gate_source(), f"sm_{architecture}").startswith(b"\x7fELF")


# other tools


def test_the_wall_clock_stops_once_the_device_is_idle(monkeypatch):
    clock, steps = SimpleNamespace(now=0), []

    def launch():
        steps.append("launch")
        clock.now += 10

    def synchronize():
        steps.append("wait")
        clock.now += 1000 if len(steps) <= 20 else 40

    monkeypatch.setattr(rivals.time, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(rivals, "runtime", lambda: SimpleNamespace(synchronize=synchronize))
    assert rivals.wall_clock(launch) == 50
    assert steps[:4] == ["launch", "wait", "launch", "wait"]


def cold(**values):
    return {
        "summaries": [
            {"tag": f"nv/cold/time/gpu/{name}", "data": [{"name": "value", "value": value}]}
            for name, value in values.items()
        ]
    }


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([cold(mean="4e-06")], (4000.0, 4000.0, None)),
        ([cold(mean="4e-06", median="3e-06", **{"stdev/relative": "0.012"})], (3000.0, 4000.0, 0.012)),
        ([{"is_skipped": True, "skip_reason": "no stream"}], "no stream"),
        ([{"summaries": None}], "it reported no time"),
    ],
)
def test_nvbenchs_median_is_taken_and_its_mean_where_there_is_none(states, expected):
    found = rivals._nvbench_times({"states": states})
    if isinstance(found, str):
        assert found == expected
    else:
        assert (found.median_ns, found.mean_ns, found.noise) == pytest.approx(expected)


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
    table = fleet_simulation.simulate(1)
    assert table["normal tails, healthy"] == {"fleets": 1, "others": 0}
    faults = {"GPU-100", "GPU-300", "host88", "host9999", "bits of GPU-700"}
    assert faults <= {*table["normal tails, with faults"]}
    assert table["normal tails, with faults"]["others"] == 0
