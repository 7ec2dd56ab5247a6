"""The spine on a GPU that NumPy computes for: verify, measure, check again, judge."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeEnvironment, FakeGpu, FakeTimer, doubling, only_case

from pytest_gpukern import scopes as scopes_module
from pytest_gpukern.backends import cuda
from pytest_gpukern.gate import Conditions, SessionTime
from pytest_gpukern.marker import MarkerOptions
from pytest_gpukern.problem import Axis, Tolerance
from pytest_gpukern.result import Correctness, VerdictKind
from pytest_gpukern.runner import NotRunError, diagnose_case, run_case
from pytest_gpukern.scopes import scopes_of, timer_for
from pytest_gpukern.settings import Settings
from pytest_gpukern.timers import event as event_module
from pytest_gpukern.verify import Fault

TEST_FILE = Path("suites/doubling/test_doubling.py")
N = 8


@pytest.fixture
def events():
    """What happened, in order."""
    return []


@pytest.fixture
def gpu(events, monkeypatch):
    """A backend that claims to run on a GPU, and a CUDA runtime with a gigabyte of memory."""
    runtime = SimpleNamespace(free_bytes=lambda: 2**30, flush_l2=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(cuda, "runtime", lambda: runtime)
    return FakeGpu(events)


@pytest.fixture
def timer(events, monkeypatch):
    """The timer of every scope."""
    made = FakeTimer(events=events)
    monkeypatch.setattr(scopes_module, "timer_for", lambda *args: made)
    return made


def measuring(**changes):
    return Settings(benchmark=True, asked=True, **changes)


def case_of(prepare, backend="numba", problem=None, **arguments):
    problem = problem or doubling(N)
    problem.variant(backend, **arguments)(prepare)
    return only_case(problem)


def run(case, environment, marker=None):
    return run_case(case, environment, marker or MarkerOptions(), "test_doubling.py::test[x]", TEST_FILE)


def right(a, out):
    return lambda: np.multiply(a, 2, out=out)


def noting(events, after=10**9, then=None):
    """A right variant that notes its launches, and turns into `then(a, out)` after so many."""

    def prepare(a, out):
        count = []

        def launch():
            count.append(1)
            events.append("launch")
            if len(count) > after:
                then(a, out)
            else:
                np.multiply(a, 2, out=out)

        return launch

    return prepare


# the order


def test_a_case_is_verified_then_measured_then_checked_again(gpu, timer, events):
    result = run(case_of(noting(events)), FakeEnvironment(gpu))
    first_timed = events.index("timed")
    last_timed = len(events) - 1 - events[::-1].index("timed")
    before, after = events[:first_timed], events[last_timed:]
    assert before[:5] == ["poison", "launch", "load", "poison", "launch"]
    assert after[-3:] == ["poison", "launch", "close"], "one launch on poisoned outputs after timing"
    assert result.correctness is Correctness.PASSED
    assert result.diagnosis is None
    (measurement,) = result.measurements
    assert measurement.key == "kernel/event/cold"
    assert result.errors["out"].mismatches == 0
    assert result.first_call_ns > 0


def test_a_variant_that_comes_to_replay_its_answer_is_incorrect(gpu, timer):
    def replays_from_the_third_launch_on(a, out):
        answers = []

        def launch():
            if len(answers) < 2:
                answers.append(2 * a)
            out[...] = answers[-1]

        return launch

    result = run(case_of(replays_from_the_third_launch_on), FakeEnvironment(gpu))
    assert result.correctness is Correctness.INCORRECT
    assert "right before timing, wrong after it" in result.diagnosis
    assert "stale result" in result.diagnosis


def test_what_a_launch_holds_on_to_is_let_go_before_memory_is_released(gpu, timer, monkeypatch):
    class Held:
        pass

    def holds(a, out):
        held = Held()
        alive.append(weakref.ref(held))
        return lambda: np.multiply(a, 2, out=out) if held else None

    alive = []
    monkeypatch.setattr(gpu, "release", lambda: alive.append(alive[0]()))
    run(case_of(holds), FakeEnvironment(gpu))
    assert alive[1:] == [None]


def test_memory_for_a_reference_in_higher_precision_is_counted(gpu, monkeypatch):
    free = 4 * N + 4 * N + 8 * N  # input, output and a float64 reference
    small = SimpleNamespace(free_bytes=lambda: free, forget_references=lambda: None)
    monkeypatch.setattr(cuda, "runtime", lambda: small)
    environment = FakeEnvironment(gpu, settings=Settings())
    assert run(case_of(right), environment).correctness is Correctness.PASSED
    free -= 1
    with pytest.raises(NotRunError, match="too large: it needs"):
        run(case_of(right), environment)


def test_a_case_travels_with_everything_that_identifies_it(gpu, timer):
    problem = doubling(N, version=7, speedup_against="host.right")
    result = run(case_of(right, problem=problem, block=(64,)), FakeEnvironment(gpu))
    assert result.case.id == "doubling/numba.right/n=8,block=64"
    assert (result.case.problem, result.case.problem_version) == ("doubling", 7)
    assert (result.case.variant, result.case.backend) == ("right", "numba")
    assert (result.case.point, result.case.measured_point, result.case.parameters) == (
        {"n": 8},
        {"n": 8},
        {"block": 64},
    )
    assert (result.case.baseline_dir, result.case.baseline_name) == ("suites/doubling/baselines", "doubling")
    assert result.speedup_against == "host.right"
    assert result.nodeid == "test_doubling.py::test[x]"
    assert result.fingerprint == {"device_name": "fake"}
    assert not result.simulated


def test_nothing_is_measured_where_measuring_is_off(gpu, timer, events):
    result = run(case_of(noting(events)), FakeEnvironment(gpu, settings=Settings(asked=True)))
    assert result.correctness is Correctness.PASSED
    assert result.measurements == ()
    assert "timed" not in events
    assert events.count("launch") == 2


def test_nothing_is_measured_in_the_simulator(gpu, timer, events):
    gpu.on_gpu, gpu.simulated = False, True
    result = run(case_of(noting(events)), FakeEnvironment(gpu, simulating=True))
    assert (result.correctness, result.simulated, result.measurements) == (Correctness.PASSED, True, ())


def test_the_device_is_held_while_checking_and_measuring_and_given_back(gpu, timer):
    environment = FakeEnvironment(gpu)
    held = []

    def prepare(a, out):
        held.append(environment.locked)
        return lambda: held.append(environment.locked) or np.multiply(a, 2, out=out)

    run(case_of(prepare), environment)
    assert set(held) == {True}
    assert not environment.locked


@pytest.mark.parametrize("ending", ["right", "wrong", "raises"])
def test_memory_is_given_back_however_a_case_ends(gpu, timer, events, monkeypatch, ending):
    environment = FakeEnvironment(gpu)
    variant = {"right": right, "wrong": lambda out: lambda: None, "raises": right}[ending]
    if ending == "raises":
        monkeypatch.setattr(timer, "collect", None)  # a timer that is broken, which is no launch's fault
        with pytest.raises(TypeError):
            run(case_of(variant), environment)
    else:
        run(case_of(variant), environment)
    assert events.count("close") == 1
    assert gpu.released == 1
    assert not environment.locked


# incorrect


def test_an_incorrect_case_is_not_timed(gpu, timer, events):
    result = run(case_of(lambda a, out: lambda: np.multiply(a, 3, out=out)), FakeEnvironment(gpu))
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis.startswith("out: wrong values: 8 of 8 elements")
    assert result.errors["out"].mismatches == 8
    assert result.measurements == ()
    assert result.verdicts == {}
    assert "timed" not in events


def stop_writing(a, out):
    pass


def write_something_else(a, out):
    out[:] = 7


def write_nan(a, out):
    out[:] = np.nan


def spoil_the_input(a, out):
    np.multiply(a, 2, out=out)
    a += 1


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (write_something_else, "out: wrong values"),
        (write_nan, "out: unexpected NaN"),
        (stop_writing, "out: not written: 8 of 8"),
        (spoil_the_input, "out: wrong values"),
    ],
)
@pytest.mark.parametrize("after", [2, 3, 60])
def test_a_variant_that_turns_wrong_once_it_is_timed_is_incorrect(gpu, timer, events, then, message, after):
    """Two launches are checked and fifty warm up, so each of these turns wrong before its timing ends."""
    result = run(case_of(noting(events, after, then)), FakeEnvironment(gpu))
    assert result.correctness is Correctness.INCORRECT
    first, second = result.diagnosis.splitlines()[:2]
    assert first == "right before timing, wrong after it"
    assert second.startswith(message)
    assert result.measurements == (), "its times are worth nothing"
    assert "timed" in events


def behaves_while_checked(a, out, events):
    """Right whenever the outputs were poisoned just now, as they are before a checked launch."""
    return lambda: np.multiply(a, 2 if events[-1] == "poison" else 3, out=out)


def test_a_variant_that_is_wrong_only_while_it_is_timed_is_incorrect(gpu, timer, events):
    result = run(case_of(lambda a, out: behaves_while_checked(a, out, events)), FakeEnvironment(gpu))
    assert result.diagnosis.startswith("right before timing, wrong after it\nout: wrong values")


def test_an_array_that_was_returned_while_timing_is_checked_too(gpu, timer, events):
    def prepare(a):
        return lambda: behaves_while_checked(a, np.empty_like(a), events)()

    result = run(case_of(prepare, allocates=True), FakeEnvironment(gpu))
    assert result.diagnosis.startswith("right before timing, wrong after it\nout: wrong values")


def test_a_statistical_check_is_asked_again_after_timing(gpu, timer):
    asked = []

    def check(runs):
        asked.append(len(runs))
        return "the mean drifted" if len(asked) == 2 else None

    problem = doubling(N, reference=None, check=check, check_seeds=3)
    result = run(case_of(right, problem=problem), FakeEnvironment(gpu))
    assert asked == [3, 1]
    assert result.diagnosis == "right before timing, wrong after it\nthe mean drifted"


# scopes


@pytest.mark.parametrize(
    ("scope", "one_call"),
    [("transfer", ["load", "fetch"]), ("end_to_end", ["load", "launch", "fetch"]), ("kernel", ["launch"])],
)
def test_a_scope_contains_the_copies_the_launch_or_both(gpu, timer, events, monkeypatch, scope, one_call):
    found = []
    monkeypatch.setattr(
        timer,
        "collect",
        lambda call, count, **kw: found.append(call) or FakeTimer.collect(timer, call, 12, **kw),
    )
    result = run(case_of(noting(events)), FakeEnvironment(gpu, settings=measuring(scopes=(scope,))))
    assert [measurement.scope for measurement in result.measurements] == [scope]
    assert result.correctness is Correctness.PASSED
    start = events.index("timed") + 1
    assert events[start : start + 12 * len(one_call)] == one_call * 12


def test_end_to_end_brings_back_what_an_allocating_variant_returned(gpu, timer, events):
    fetched = []
    original = gpu.workspace

    def workspace(inputs, outputs):
        made = original(inputs, outputs)
        fetch = made.fetch
        made.fetch = lambda name, into=None: fetched.append(fetch(name, into)) or fetched[-1]
        return made

    gpu.workspace = workspace
    returned = []

    def prepare(a):
        def launch():
            returned.append(2 * a)
            return returned[-1]

        return launch

    case = case_of(prepare, allocates=True)
    result = run(case, FakeEnvironment(gpu, settings=measuring(scopes=("end_to_end",))))
    assert result.correctness is Correctness.PASSED
    assert np.array_equal(fetched[-1], returned[-2]), "the last is launched on other inputs, after timing"


@pytest.mark.parametrize("allocates", [False, True])
def test_nothing_is_copied_out_before_the_launch_has_ended(gpu, timer, allocates):
    queue = []
    gpu.synchronize = queue.clear
    original = gpu.workspace

    def workspace(inputs, outputs):
        made = original(inputs, outputs)
        fetch, adopt = made.fetch, made.adopt

        def when_idle(method):
            def checked(*args, **kwargs):
                assert not queue, "the launch still runs"
                return method(*args, **kwargs)

            return checked

        made.fetch, made.adopt = when_idle(fetch), when_idle(adopt)
        return made

    gpu.workspace = workspace

    def writes(a, out):
        return lambda: queue.append("work") or np.multiply(a, 2, out=out)

    def returns(a):
        return lambda: queue.append("work") or 2 * a

    case = case_of(returns if allocates else writes, allocates=allocates)
    result = run(case, FakeEnvironment(gpu, settings=measuring(scopes=("end_to_end",))))
    assert result.correctness is Correctness.PASSED


def test_a_case_is_measured_in_each_of_its_scopes_with_the_work_that_belongs_to_it(gpu, timer):
    problem = doubling(N, scopes=("kernel", "transfer", "end_to_end"))
    measured = {m.scope: m for m in run(case_of(right, problem=problem), FakeEnvironment(gpu)).measurements}
    assert list(measured) == ["kernel", "transfer", "end_to_end"]
    assert {scope: m.traffic_bytes for scope, m in measured.items()} == {
        "kernel": 8 * N,
        "transfer": 4 * N + 4 * N,
        "end_to_end": 4 * N + 4 * N,
    }
    assert {scope: m.flops for scope, m in measured.items()} == {
        "kernel": N,
        "transfer": None,
        "end_to_end": N,
    }


def test_declared_transfer_bytes_replace_counted_ones(gpu, timer):
    problem = doubling(N, scopes=("transfer",), transfer_bytes=lambda n: 100 * n)
    (measurement,) = run(case_of(right, problem=problem), FakeEnvironment(gpu)).measurements
    assert measurement.traffic_bytes == 100 * N


def test_a_host_variant_is_measured_end_to_end_with_nothing_to_copy_or_flush(timer, events):
    result = run(case_of(noting(events), backend="host"), FakeEnvironment())
    (measurement,) = result.measurements
    assert (measurement.scope, measurement.cache) == ("end_to_end", "hot")
    assert measurement.traffic_bytes == 8 * N
    assert set(timer.colds) == {False}


def test_a_variant_that_moves_its_own_data_gets_host_arrays_and_is_timed_as_it_is(gpu, timer, events):
    given = []

    def prepare(a, out):
        given.append(type(a))
        return noting(events)(a, out)

    result = run(case_of(prepare, host_data=True), FakeEnvironment(gpu))
    assert given == [np.ndarray]
    assert [measurement.scope for measurement in result.measurements] == ["end_to_end"]
    assert {"load", "fetch", "poison"}.isdisjoint(events), "its arrays are not in the GPU's workspace"


@pytest.mark.parametrize(
    ("asked", "backend", "arguments", "expected"),
    [
        ((), "numba", {}, ("kernel",)),
        (("transfer", "kernel"), "numba", {}, ("transfer", "kernel")),
        (("kernel",), "host", {}, ()),
        (("kernel", "end_to_end"), "host", {}, ("end_to_end",)),
        (("kernel",), "numba", {"host_data": True}, ()),
    ],
)
def test_scopes_asked_for_are_kept_where_they_make_sense(asked, backend, arguments, expected):
    environment = FakeEnvironment(settings=measuring(scopes=asked))
    assert scopes_of(case_of(right, backend, **arguments), environment) == expected


# timers and cache


@pytest.mark.parametrize(
    ("scope", "setting", "marker", "expected"),
    [
        ("kernel", "auto", None, "event"),
        ("kernel", "event", None, "event"),
        ("kernel", "host", None, "host"),
        ("kernel", "host", "event", "event"),
        ("kernel", "event", "host", "host"),
        ("transfer", "auto", None, "host"),
        ("end_to_end", "auto", None, "host"),
    ],
)
def test_kernels_are_timed_by_events_and_what_ends_on_the_host_by_its_clock(
    gpu, monkeypatch, scope, setting, marker, expected
):
    monkeypatch.setattr(event_module, "EventTimer", lambda runtime: FakeTimer())
    environment = FakeEnvironment(gpu, settings=measuring(timer=setting))
    assert timer_for(scope, gpu, environment, MarkerOptions(timer=marker)).name == expected


@pytest.mark.parametrize("setting", ["auto", "event"])
def test_events_never_time_the_host(setting):
    environment = FakeEnvironment(settings=measuring(timer=setting))
    found = timer_for("end_to_end", environment.backend("host"), environment, MarkerOptions())
    assert found.name == "host"


@pytest.mark.parametrize(
    ("setting", "marker", "expected"),
    [("cold", None, "cold"), ("hot", None, "hot"), ("cold", "hot", "hot"), ("hot", "cold", "cold")],
)
def test_the_markers_cache_policy_wins_over_the_runs(gpu, timer, setting, marker, expected):
    environment = FakeEnvironment(gpu, settings=measuring(cache=setting))
    (measurement,) = run(case_of(right), environment, MarkerOptions(cache=marker)).measurements
    assert measurement.cache == expected
    assert set(timer.colds) == {expected == "cold"}


# what does not run, and why


def why_not(case, environment):
    with pytest.raises(NotRunError) as reason:
        run(case, environment)
    with pytest.raises(NotRunError) as same:
        diagnose_case(case, environment)
    assert str(same.value) == str(reason.value)
    return str(reason.value)


def test_a_backend_that_was_not_selected_says_which_were(gpu):
    environment = FakeEnvironment(gpu, settings=measuring(backends=("cupy", "host")))
    assert why_not(case_of(right), environment) == "not selected: --gpukern-backend=cupy,host"


def test_a_missing_library_is_named():
    environment = FakeEnvironment(missing={"cupy": "cupy-cuda13x is not installed"})
    assert why_not(case_of(right, "cupy"), environment) == "cupy-cuda13x is not installed"


def test_a_file_that_could_not_be_imported_gives_its_own_reason(gpu):
    from pytest_gpukern.problem import Variant

    problem = doubling(N)
    problem.add(Variant("lost", "numba", None, unavailable="lib is not installed"))
    assert why_not(only_case(problem), FakeEnvironment(gpu)) == "lib is not installed"


def test_a_point_beyond_the_variants_limit_says_so(gpu):
    case = case_of(right, limits={"n": 7})
    assert why_not(case, FakeEnvironment(gpu)) == "too large: n=8, and the variant declares a limit of 7"


def test_what_the_simulator_lacks_is_named_and_matters_in_the_simulator_only(gpu, timer):
    case = case_of(right, needs_gpu="tensor cores")
    assert why_not(case, FakeEnvironment(gpu, simulating=True)) == "not in the simulator: tensor cores"
    assert run(case, FakeEnvironment(gpu)).correctness is Correctness.PASSED


def test_a_scope_that_a_case_does_not_have_says_which_it_has():
    environment = FakeEnvironment(settings=measuring(scopes=("kernel",)))
    found = why_not(case_of(right, "host"), environment)
    assert found == "not selected: --gpukern-scope=kernel, and it has end_to_end"


def test_arrays_that_do_not_fit_the_device_say_by_how_much(gpu, monkeypatch):
    monkeypatch.setattr(
        cuda,
        "runtime",
        lambda: SimpleNamespace(free_bytes=lambda: 3 * 4 * N - 1, forget_references=lambda: None),
    )
    assert why_not(case_of(right), FakeEnvironment(gpu)).startswith(
        "too large: it needs 0.0 GiB of device memory"
    )


def test_a_point_that_does_not_fit_the_host_is_run_smaller_and_shows_both(gpu, timer):
    problem = doubling(
        axes={"n": Axis((64,), (64,))}, shrink="n", host_bytes=lambda n: 1e8 * n, tolerance=Tolerance()
    )
    result = run(case_of(right, problem=problem), FakeEnvironment(gpu))
    assert (result.case.point, result.case.measured_point) == ({"n": 64}, {"n": 8})
    assert result.case.id.endswith("n=64")
    assert result.errors["out"].size == 8
    assert result.measurements[0].traffic_bytes == 8 * 8


# verdicts


def session(median_ns, **changes):
    conditions = Conditions(1, {"n": N}, "fake-gpu")
    values = {"key": "kernel/event/cold", "low_ns": median_ns, "high_ns": median_ns, "n": 100}
    return SessionTime(median_ns=median_ns, conditions=conditions, **{**values, **changes})


def test_each_measurement_gets_a_verdict(gpu, timer):
    problem = doubling(N, scopes=("kernel", "transfer"))
    environment = FakeEnvironment(gpu)
    result = run(case_of(right, problem=problem), environment)
    assert {key: verdict.kind for key, verdict in result.verdicts.items()} == {
        "kernel/event/cold": VerdictKind.NEW,
        "transfer/event/cold": VerdictKind.NEW,
    }
    assert environment.asked_for_records == [("kernel/event/cold", True), ("transfer/event/cold", True)]


@pytest.mark.parametrize(
    ("recorded_ns", "kind"),
    [(500.0, VerdictKind.SLOWER), (1001.0, VerdictKind.SAME), (2000.0, VerdictKind.FASTER)],
)
def test_a_measurement_is_judged_by_what_is_recorded(gpu, timer, recorded_ns, kind):
    result = run(case_of(right), FakeEnvironment(gpu, recorded=(session(recorded_ns),) * 2))
    assert result.verdicts["kernel/event/cold"].kind is kind


def test_the_markers_threshold_wins_over_the_runs(gpu, timer):
    environment = FakeEnvironment(gpu, recorded=(session(900.0),) * 2)
    assert run(case_of(right), environment).verdicts["kernel/event/cold"].kind is VerdictKind.SLOWER
    lenient = run(case_of(right), environment, MarkerOptions(threshold=0.5))
    assert lenient.verdicts["kernel/event/cold"].kind is VerdictKind.SAME


def test_a_host_variant_is_judged_by_the_processors_record(timer):
    environment = FakeEnvironment()
    run(case_of(right, "host"), environment)
    assert environment.asked_for_records == [("end_to_end/event/hot", False)]


def test_without_baselines_nothing_is_compared(gpu, timer):
    environment = FakeEnvironment(gpu, settings=measuring(baseline="off"), recorded=(session(500.0),) * 2)
    assert run(case_of(right), environment).verdicts == {}
    assert environment.asked_for_records == []


@pytest.mark.parametrize("baseline", ["off", "compare"])
def test_an_invalid_measurement_is_invalid_with_or_without_baselines(gpu, timer, baseline):
    timer.suspicious = "work ran elsewhere"
    result = run(case_of(right), FakeEnvironment(gpu, settings=measuring(baseline=baseline)))
    verdict = result.verdicts["kernel/event/cold"]
    assert (verdict.kind, verdict.reason) == (VerdictKind.INVALID, "work ran elsewhere")
    assert not result.valid


# diagnosing without measuring


def test_diagnosing_a_right_case_finds_nothing_and_measures_nothing(gpu, timer, events):
    assert diagnose_case(case_of(noting(events)), FakeEnvironment(gpu)) is None
    assert "timed" not in events
    assert events[-1] == "close"


def test_diagnosing_a_broken_case_returns_what_is_wrong(gpu, timer):
    found = diagnose_case(case_of(lambda out: lambda: None), FakeEnvironment(gpu))
    assert found.fault is Fault.NOT_WRITTEN


def test_a_launch_that_fails_while_it_is_timed_is_incorrect_and_keeps_its_place_in_the_report(gpu, timer):
    calls = []

    def prepare(a, out):
        def launch():
            calls.append(1)
            if len(calls) > 10:
                raise RuntimeError("the context is gone")
            np.multiply(a, 2, out=out)

        return launch

    result = run(case_of(prepare), FakeEnvironment(gpu))
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis == "right before timing, launch failed in it: RuntimeError: the context is gone"
    assert result.measurements == ()
