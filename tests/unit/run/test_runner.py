"""Runs the spine on a GPU that NumPy computes for: verify, measure, check again, judge."""

from __future__ import annotations

import itertools
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import fakes
import made_up_times
import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, diagnose_case, doubling, measuring, noting, only_case, right, run
from msgspec import structs

from pytest_gpukern.check import check_variant
from pytest_gpukern.check.diagnosis import Fault
from pytest_gpukern.gate.comparability import Conditions
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.kernel_facts import readable
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.measure.ceilings import Ceilings
from pytest_gpukern.run import case_subject
from pytest_gpukern.run.case_subject import sets_wanted
from pytest_gpukern.run.spine import NotRunError, SubjectContext, with_facts
from pytest_gpukern.timers.cupti import machine_code as machine_code_module
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import CaseInfo, Correctness, DeviceWork, HostCopy, KernelFacts
from pytest_gpukern.values.settings import Settings
from pytest_gpukern.values.verdict_table import VerdictKind

N = 8


# the order


def test_a_case_is_verified_then_measured_then_checked_again(gpu, timer, events):
    result = run(case_of(noting(events)), FakeEnvironment(gpu))
    first_timed = events.index("timed")
    last_timed = len(events) - 1 - events[::-1].index("timed")
    before, after = events[:first_timed], events[last_timed + 1 :]
    checked, prepared_on_a_set = ["poison", "launch"], ["poison", "launch"]
    over_an_answer = ["fill", "launch"]
    contents = [*checked, "fill", *checked, *over_an_answer]
    assert before[:11] == [*contents, *prepared_on_a_set * 2]
    assert set(before[11:]) == {"launch"}, "the warm-up"
    assert after[:4] == ["queue_poison", "launch"] * 2
    *after, _, _, _ = after
    at = len(after) - 1 - after[::-1].index("fill")
    assert after[at - 3 : at] == ["fill", "poison", "launch"], "one more on other inputs"
    assert set(after[at + 1 :]) == {"poison", "launch"}, "again and again on the first ones"
    assert events[-3:] == ["close"] * 3
    assert result.correctness is Correctness.PASSED
    assert result.diagnosis is None
    (measurement,) = result.measurements
    assert measurement.key == "kernel/event/cold"
    assert measurement.buffer_sets == 3
    assert result.errors["out"].mismatches == 0
    assert result.first_call_ns > 0


@pytest.mark.parametrize("simulates", [True, False])
def test_a_time_of_the_host_that_contains_the_simulators_work_is_dropped(monkeypatch, simulates):
    monkeypatch.setattr(SimulatedLaunches, "made", 0)
    problem = doubling(N)

    @problem.variant("host")
    def prepare(a, out):
        def launch():
            SimulatedLaunches.made += simulates
            np.multiply(a, 2, out=out)

        return launch

    result = run(only_case(problem), FakeEnvironment(simulating=True))
    assert (result.simulated, not result.measurements) == (simulates, simulates)
    assert any("simulator, which never times" in note.text for note in result.notes) == simulates


def test_a_case_that_an_earlier_session_checked_is_checked_on_what_it_is_timed_on_alone(gpu, timer, events):
    case = case_of(noting(events), problem=doubling(check_points=({"n": 3},)))
    whole = run(case, FakeEnvironment(gpu))
    assert whole.corners == ("n=3",)
    before_whole = [event for event in events[: events.index("timed")] if event != "launch"]
    events.clear()
    result = run(case, FakeEnvironment(gpu), checked=True)
    before = [event for event in events[: events.index("timed")] if event != "launch"]
    assert before == ["poison", "fill", "poison", "fill", "poison", "poison"], (
        "once on each set that is timed"
    )
    assert len(before) < len(before_whole)
    last_timed = len(events) - 1 - events[::-1].index("timed")
    assert set(events[last_timed + 1 :]) == {"queue_poison", "launch", "close"}
    assert result.correctness is Correctness.PASSED
    assert result.corners == ()
    assert (whole.errors["out"].determinism, result.errors["out"].determinism) == ("bitwise", None)
    assert result.errors["out"].bits == whole.errors["out"].bits
    assert result.measurements[0].buffer_sets == whole.measurements[0].buffer_sets == 3


def test_the_hash_of_inputs_tells_shapes_dtypes_and_outputs_apart(gpu, timer, tmp_path):
    """Zeros have the same bytes in any shape."""

    def hashed(folder, shape=(8,), dtype="float32", written="float32"):
        problem = doubling(
            make_inputs=lambda rng, n: {"a": np.zeros(shape, dtype), "b": rng.random(n).astype("float32")},
            outputs=lambda n: {"out": ((n,), written)},
            reference=lambda b: 2.0 * b,
        )
        environment = FakeEnvironment(gpu)
        environment.datasets.folder = tmp_path / folder
        case = case_of(lambda b, out: lambda: np.multiply(b, 2, out=out), problem=problem)
        result = run(case, environment)
        assert environment.datasets.test == "test_doubling.py::test[x]"
        return result.inputs

    changes = ({}, {"shape": (2, 4)}, {"dtype": "int32"}, {"written": "float64"}, {})
    found = [hashed(f"{number}", **each) for number, each in enumerate(changes)]
    assert found[0] == found[-1]
    assert len({*found}) == 4
    assert None not in found


@pytest.mark.parametrize("after", [0, 3, 30])
def test_a_case_that_an_earlier_session_checked_is_found_wrong_before_and_after_timing(gpu, timer, after):
    launches = itertools.count()

    def wrong(a, out):
        return lambda: np.multiply(a, 2 if next(launches) < after else 3, out=out)

    result = run(case_of(wrong), FakeEnvironment(gpu), checked=True)
    assert result.correctness is Correctness.INCORRECT
    assert result.measurements == ()


def test_loading_of_code_is_observed_in_every_launch_but_timed_ones(gpu, timer):
    """A library loads a module once: where a corner is the first to need it, too."""
    problem, seen = doubling(check_points=[{"n": 3}]), []

    def noting_observation(a, out):
        def launch():
            seen.append((len(a), environment.observed))
            np.multiply(a, 2, out=out)

        return launch

    environment = FakeEnvironment(gpu)
    result = run(case_of(noting_observation, problem=problem), environment)
    assert result.corners == ("n=3",)
    corner = [observed for size, observed in seen if size == 3]
    assert set(corner) == {"loading"}
    first_timed = next(i for i, (_, observed) in enumerate(seen) if not observed)
    assert seen[:3] == [(N, "loading")] * 3, "three contents"
    assert seen[3:5] == [(N, "launches")] * 2, "on two more sets"
    assert {size for size, _ in seen[5:first_timed]} == {3}
    rest = [observed for _, observed in seen[first_timed:]]
    last_timed = len(rest) - 1 - rest[::-1].index(None)
    assert last_timed > 3
    assert set(rest[: last_timed + 1]) == {None}
    assert set(rest[last_timed + 1 :]) == {"loading"}


def test_loading_of_code_is_observed_in_broken_variants_too(gpu):
    seen = []

    def wrong(a, out):
        return lambda: seen.append(environment.observed)

    environment = FakeEnvironment(gpu)
    assert diagnose_case(case_of(wrong), environment) is not None
    assert set(seen) == {"loading"}


# buffer sets


@pytest.fixture
def contents(monkeypatch):
    """Contents of the buffer sets when measuring began."""
    found = []

    def measure(subject, evidence):
        found.extend(prepared.workspace.arrays["a"].tobytes() for prepared in subject.sets)

    monkeypatch.setattr(case_subject.CaseSubject, "measure", measure)
    return found


def test_each_set_has_what_the_variant_takes_when_it_prepares(gpu, contents):
    """Scalars are given to a variant once, so each set is prepared with those of its own contents."""
    given = []

    def scale(a, out, k):
        given.append(k)
        return lambda: np.multiply(a, np.float32(k), out=out)

    assert run(case_of(scale, problem=fakes.scaled()), FakeEnvironment(gpu)).correctness is Correctness.PASSED
    assert len(set(given)) == 2, "the third set has the scalars of the second"
    first, second = given[:2]
    assert given[2:] == [first, second, first], "two for the other sets, and for what is repeated at last"


@pytest.mark.parametrize(
    ("free_sets", "call_s", "expected"),
    [(7.9, 0, 3), (4.0, 0, 3), (3.9, 0, 2), (2.0, 0, 2), (1.9, 0, 1), (8, 0.02, 3), (8, 0.021, 1)],
)
def test_further_sets_take_half_of_the_memory_that_is_left_and_a_call_over_20_ms_stays_on_one(
    gpu, contents, monkeypatch, free_sets, call_s, expected
):
    one_set, free = 4 * N + 4 * N, [2**30]

    def check(prepared, **options):
        checking(prepared, **options)
        free[0] = free_sets * one_set
        prepared.shortest_call_ns = 1e9 * call_s

    checking = case_subject.check
    monkeypatch.setattr(case_subject, "check", check)
    monkeypatch.setattr(cuda.runtime(), "free_bytes", lambda: free[0])
    run(case_of(right), FakeEnvironment(gpu))
    assert len(set(contents)) == len(contents) == expected


def test_copies_of_inputs_and_references_make_room_for_sets(gpu, contents, monkeypatch):
    free = [2**30, 100, 2**30]
    monkeypatch.setattr(cuda.runtime(), "free_bytes", lambda: free.pop(0) if len(free) > 1 else free[0])
    run(case_of(right), FakeEnvironment(gpu))
    assert gpu.events.count("forget") == 1
    assert len(contents) == 3


def test_a_statistical_check_poisons_after_timing_however_slow_the_call_is(gpu, timer, monkeypatch):
    """Without a reference, an answer of other contents looks like one that a launch has left."""
    found = []

    def watching(a, out):
        def launch():
            found.append(bool(np.isnan(out).all()))
            np.multiply(a, 2, out=out)

        return launch

    monkeypatch.setattr(check_variant, "SLOW_ON_DEVICE_NS", 0)
    problem = doubling(reference=None, check=lambda runs: None)
    result = run(case_of(watching, problem=problem), FakeEnvironment(gpu))
    assert result.correctness is Correctness.PASSED
    assert found[-1]


@pytest.mark.parametrize(
    ("backend", "arguments", "settings"),
    [
        ("host", {}, measuring()),
        ("numba", {"host_data": True}, measuring()),
        ("numba", {}, Settings(requested=True)),
    ],
)
def test_a_case_not_timed_on_the_device_has_one_set(gpu, contents, backend, arguments, settings):
    prepared, launched_on = [], set()

    def noted(a, out):
        prepared.append(1)

        def launch():
            launched_on.add(a.tobytes())
            np.multiply(a, 2, out=out)

        return launch

    run(case_of(noted, backend, **arguments), FakeEnvironment(gpu, settings=settings))
    assert len(prepared) == 1
    assert len(launched_on) == 3


def test_in_the_simulator_a_case_is_launched_twice_and_not_measured(gpu, timer, events):
    """Each launch there takes seconds."""
    gpu.on_gpu, gpu.simulated = False, True
    result = run(case_of(noting(events)), FakeEnvironment(gpu, simulating=True))
    assert (result.correctness, result.simulated, result.measurements) == (Correctness.PASSED, True, ())
    assert events.count("launch") == 2


def test_diagnosing_launches_on_two_sets_over_the_answer_of_one_of_them_and_over_numbers(gpu, events):
    assert diagnose_case(case_of(noting(events)), FakeEnvironment(gpu)) is None
    assert events == [*["poison", "launch", "fill"] * 2, "launch", *["poison", "launch"] * 2, "close"]


@pytest.mark.parametrize(
    ("timer", "cache", "marker", "one_set", "sets"),
    [
        ("graph", "cold", {}, 64, 21),
        ("auto", "cold", {"timer": "graph"}, 64, 21),
        ("graph", "hot", {"cache": "cold"}, 64, 21),
        ("graph", "hot", {}, 64, 3),
        ("graph", "cold", {"cache": "hot"}, 64, 3),
        ("graph", "cold", {"timer": "event"}, 64, 3),
        ("event", "cold", {}, 64, 3),
        # three at least, 512 at most
        ("graph", "cold", {}, 1, 512),
        ("graph", "cold", {}, 400, 5),
        ("graph", "cold", {}, 10_000, 3),
        ("graph", "cold", {}, 0, 3),
    ],
)
def test_only_cold_graphs_take_turns_on_so_many_sets_that_each_is_evicted(
    gpu, monkeypatch, timer, cache, marker, one_set, sets
):
    """Nothing is flushed between the calls of a graph."""
    monkeypatch.setattr(cuda.runtime(), "l2_bytes", 640)
    environment = FakeEnvironment(gpu, settings=measuring(timer=timer, cache=cache))
    context = SubjectContext(environment, MarkerOptions(**marker), "x", None)
    assert sets_wanted(SimpleNamespace(device_bytes=one_set), context) == sets


def test_cold_graphs_are_timed_on_those_sets_with_three_contents_in_turn(gpu, contents, monkeypatch):
    monkeypatch.setattr(cuda.runtime(), "l2_bytes", 3 * (4 * N + 4 * N))
    run(case_of(right), FakeEnvironment(gpu, settings=measuring(timer="graph")))
    assert len(contents) == 7
    assert len(set(contents)) == len(set(contents[:3])) == 3
    assert len(gpu.workspaces) == 7, "of its own memory each"


# facts


@pytest.fixture
def known(monkeypatch):
    """Plays what CUPTI knows of machine code."""
    found = SimpleNamespace(
        sha256=lambda *asked: {("_Z3addPf", 40): "c0de"}.get(asked), loading=nullcontext, refused=None
    )
    monkeypatch.setattr(machine_code_module, "machine_code", lambda: found)
    return found


def work(name="_Z3addPf", registers=40, local_bytes=0):
    kernel = KernelFacts(
        readable(name), registers, local_bytes, 0, grid=(63, 1, 1), block=(256, 1, 1), symbol=name
    )
    return DeviceWork("kernel", name, 1.0, 1000.0, kernel=kernel)


def measured(gpu, timer, *measurements):
    """A result of the fake GPU, with these (scope, work) instead of what was measured."""
    result = run(case_of(right), FakeEnvironment(gpu))
    (only,) = result.measurements
    changed = (structs.replace(only, scope=scope, work=work) for scope, work in measurements)
    return structs.replace(result, measurements=tuple(changed))


def on_an_h200(gpu):
    environment = FakeEnvironment(gpu)
    environment.has_gpu = True
    environment.device = SimpleNamespace(compute_capability=(9, 0))
    return environment


def test_kernel_facts_come_with_the_hash_of_the_loaded_machine_code(gpu, timer, known, monkeypatch):
    environment = on_an_h200(gpu)
    environment.ceilings = Ceilings(device_copy_bytes_per_s=4.2e12)
    result = with_facts(measured(gpu, timer, ("kernel", (work(),))), environment)
    (facts,) = result.kernels
    assert (facts.symbol, facts.name) == ("_Z3addPf", "add(float*)")
    assert (facts.machine_code_sha256, facts.occupancy) == ("c0de", 0.75)
    assert result.ceilings == {**structs.asdict(Ceilings()), "device_copy_bytes_per_s": 4.2e12}
    monkeypatch.setattr(machine_code_module, "machine_code", lambda: None)  # without CUPTI
    (facts,) = with_facts(measured(gpu, timer, ("kernel", (work(),))), environment).kernels
    assert (facts.machine_code_sha256, facts.registers) == (None, 40)


def test_late_warnings_are_noted_with_the_first_result(gpu, timer, known):
    environment = on_an_h200(gpu)
    late = Note("the copy was faster than the memory")
    environment.late = [late]
    made = measured(gpu, timer, ("kernel", (work(),)))
    assert late in with_facts(made, environment).notes
    assert late not in with_facts(made, environment).notes


@pytest.mark.parametrize("refused", [None, "another profiler is attached"])
def test_a_kernel_whose_code_was_not_seen_is_named_with_the_reason(gpu, timer, known, refused):
    known.refused = refused
    works = (work(), work("_Z5otherv"), work("_Z5thirdv"))
    (note,) = with_facts(measured(gpu, timer, ("kernel", works)), on_an_h200(gpu)).notes
    why = refused or "we did not see it loaded, or several kernels share its name"
    text = f"no hash of the machine code of other() and 1 more kernel: {why}"
    assert note == Note(text, About.MACHINE_CODE)


@pytest.mark.parametrize(
    ("direction", "count", "size_bytes", "told"),
    [
        ("HtoD", 2.0, 8.0, "2 single values"),
        ("HtoD", 1.0, 4.0, "1 single value"),
        ("HtoD", 1.0, 4096.0, None),
        ("DtoH", 1.0, 4.0, None),
    ],
)
def test_a_call_that_copies_single_values_to_the_device_is_told_that_they_are_in_its_time(
    gpu, timer, known, direction, count, size_bytes, told
):
    copy = DeviceWork(
        "memcpy", direction, count, 900.0, size_bytes, host_copy=HostCopy(direction, "pageable")
    )
    for scope in ("kernel", "end_to_end"):
        notes = with_facts(measured(gpu, timer, (scope, (work(), copy))), on_an_h200(gpu)).notes
        texts = [note.text for note in notes if "single value" in note.text]
        assert [text.partition(" from")[0] for text in texts] == [f"each call copies {told}"] * (
            scope == "kernel" and told is not None
        )


def test_the_kernels_are_those_of_the_kernel_scope_where_there_is_one(gpu, timer, known):
    whole, own = ("end_to_end", (work("_Z5wholev"),)), ("kernel", (work("_Z3ownv"),))
    silent = ("kernel", ())
    for measurements, name in (((whole, own), "_Z3ownv"), ((silent, whole), "_Z5wholev")):
        (facts,) = with_facts(measured(gpu, timer, *measurements), on_an_h200(gpu)).kernels
        assert facts.symbol == name


@pytest.mark.parametrize("lacks", ["a device", "a real one", "a variant on it"])
def test_a_result_without_a_gpu_gets_no_kernel_facts(gpu, timer, known, lacks):
    environment, result = on_an_h200(gpu), measured(gpu, timer, ("kernel", (work(),)))
    if lacks == "a device":
        environment.device = None
    elif lacks == "a real one":
        environment.has_gpu = False
    else:
        result = structs.replace(result, case=structs.replace(result.case, backend="host"))
    assert with_facts(result, environment) is result


# memory


def test_objects_held_by_a_launch_are_dropped_before_memory_is_released(gpu, timer, monkeypatch):
    class Held:
        pass

    def holds(a, out):
        held = Held()
        alive.append(weakref.ref(held))
        return lambda: np.multiply(a, 2, out=out) if held else None

    alive, at_release = [], []
    monkeypatch.setattr(gpu, "release", lambda: at_release.extend(held() for held in alive))
    run(case_of(holds), FakeEnvironment(gpu))
    assert at_release == [None] * 3, "one for each buffer set"


def test_memory_for_a_reference_in_higher_precision_is_counted(gpu, monkeypatch):
    free = 4 * N + 4 * N + 8 * N  # input, output and a float64 reference
    monkeypatch.setattr(cuda.runtime(), "free_bytes", lambda: free)
    environment = FakeEnvironment(gpu, settings=Settings())
    assert run(case_of(right), environment).correctness is Correctness.PASSED
    free -= 1
    with pytest.raises(NotRunError, match="too large: it needs"):
        run(case_of(right), environment)


def test_a_case_travels_with_everything_that_identifies_it(gpu, timer):
    problem = doubling(N, version=7, speedup_against="host.right")

    def fast(a, out, block):
        return right(a, out)

    result = run(case_of(fast, problem=problem, block=(64,)), FakeEnvironment(gpu))
    known = ("doubling", 7, "fast", "numba", {"n": 8}, {"block": 64}, "suites/doubling/baselines", "doubling")
    assert result.case == CaseInfo("doubling/numba.fast/n=8,block=64", *known)
    assert result.speedup_against == "host.right"
    assert result.nodeid == "test_doubling.py::test[x]"
    assert result.fingerprint.device_name == "fake"
    assert not result.simulated


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
    assert events.count("close") == len(gpu.workspaces) == (1 if ending == "wrong" else 3)
    assert gpu.released == 1
    assert not environment.locked


# what does not run, and why


def why_not(case, environment):
    with pytest.raises(NotRunError) as reason:
        run(case, environment)
    with pytest.raises(NotRunError) as same:
        diagnose_case(case, environment)
    assert str(same.value) == str(reason.value)
    return str(reason.value)


MISSING = {"missing": {"cupy": "cupy-cuda13x is missing"}}
KERNELS = {"settings": measuring(scopes=("kernel",))}
LARGE = {"transfer_bytes": lambda n: 2**30 * n, "make_inputs": lambda rng, n: pytest.fail("made")}


@pytest.mark.parametrize(
    ("variant", "problem", "environment", "reason"),
    [
        ({"backend": "cupy"}, {}, MISSING, "cupy-cuda13x is missing"),
        ({"max_size": {"n": 7}}, {}, {}, "too large: n=8, but its max_size is 7"),
        ({"backend": "host"}, {}, KERNELS, "not selected: --gpukern-scope=kernel, but it has end_to_end"),
        ({"needs_gpu": "tensor cores"}, {}, {"simulating": True}, "not in the simulator: tensor cores"),
        ({}, LARGE, {}, "too large: it needs 8.0 GiB of host memory, and 1.0 are available"),
    ],
)
def test_a_case_that_cannot_run_says_why(gpu, monkeypatch, variant, problem, environment, reason):
    monkeypatch.setattr(case_subject, "available_host_bytes", lambda: 2.0**30)
    case = case_of(right, problem=doubling(**problem), **variant)
    assert why_not(case, FakeEnvironment(gpu, **environment)) == reason


def test_what_the_simulator_lacks_matters_only_there(gpu, timer):
    case = case_of(right, needs_gpu="tensor cores")
    assert run(case, FakeEnvironment(gpu)).correctness is Correctness.PASSED


def test_arrays_that_do_not_fit_the_device_say_by_how_much(gpu, monkeypatch):
    monkeypatch.setattr(cuda.runtime(), "free_bytes", lambda: 3 * 4 * N - 1)
    why = why_not(case_of(right), FakeEnvironment(gpu))
    assert why.startswith("too large: it needs 0.0 GiB of device memory")


# verdicts


def session(median_ns, **changes):
    return made_up_times.recorded(median_ns, conditions=Conditions(1, "fake-gpu"), **changes)


def test_a_host_variant_is_judged_by_the_processors_record(timer):
    environment = FakeEnvironment()
    run(case_of(right, "host"), environment)
    assert environment.asked_for_records == [("end_to_end/host/hot", False)]


@pytest.mark.parametrize("baseline", ["off", "compare"])
def test_an_invalid_measurement_is_invalid_with_or_without_baselines(gpu, timer, baseline):
    timer.suspicious = "work ran elsewhere"
    result = run(case_of(right), FakeEnvironment(gpu, settings=measuring(baseline=baseline)))
    verdict = result.verdicts["kernel/event/cold"]
    assert (verdict.kind, verdict.reason) == (VerdictKind.INVALID, "work ran elsewhere")
    assert not result.valid


KERNEL, WHOLE = "kernel/cupti/cold", "end_to_end/host/cold"


@pytest.mark.parametrize(
    ("recorded", "kinds"),
    [
        ((), {KERNEL: VerdictKind.NEW, WHOLE: VerdictKind.NEW}),
        ((KERNEL,), {KERNEL: VerdictKind.SLOWER, WHOLE: VerdictKind.NEW}),
        ((WHOLE,), {KERNEL: VerdictKind.NEW, WHOLE: VerdictKind.SLOWER}),
    ],
)
def test_each_scope_is_judged_by_its_own_record(gpu, timer, recorded, kinds):
    sessions = {key: (session(500.0, key=key),) * 2 for key in recorded}
    settings = measuring(timer="auto", fail_on=("slower", "host"))
    environment = FakeEnvironment(gpu, settings=settings, recorded=sessions)
    problem = doubling(N, scopes=("kernel", "end_to_end"))
    result = run(case_of(right, problem=problem), environment)
    assert [each.key for each in result.measurements] == [KERNEL, WHOLE]
    assert {key: verdict.kind for key, verdict in result.verdicts.items()} == kinds
    assert {(KERNEL, True), (WHOLE, True)} <= set(environment.asked_for_records)


# diagnosing without measuring


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
    told, line = result.diagnosis.splitlines()
    assert told.startswith("correct before timing, launch failed during it, tests/unit/run/test_runner.py:")
    assert told.endswith(" in launch: RuntimeError: the context is gone")
    assert line == '    raise RuntimeError("the context is gone")'
    assert result.measurements == ()


def losing(gpu):
    """Loses the context with the first launch, so that nothing can be released."""
    launched = []

    def synchronize():
        if launched:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    gpu.synchronize = gpu.release = synchronize
    return case_of(lambda a, out: lambda: launched.append(1))


def test_a_late_cuda_error_is_the_launchs_even_if_memory_cannot_be_released(gpu):
    result = run(losing(gpu), FakeEnvironment(gpu))
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis.startswith("launch failed: launching numba.<lambda>, ")  # the fake's own line
    assert "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access" in result.diagnosis
    assert diagnose_case(losing(gpu), FakeEnvironment(gpu)).fault is Fault.LAUNCH_FAILED


def test_memory_that_cannot_be_released_after_a_correct_launch_is_an_error(gpu):
    def release():
        raise RuntimeError("CUDA_ERROR_UNKNOWN")

    gpu.release = release
    with pytest.raises(RuntimeError, match="CUDA_ERROR_UNKNOWN"):
        diagnose_case(case_of(right), FakeEnvironment(gpu))
