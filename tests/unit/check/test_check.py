"""Every way to be wrong gets its own diagnosis; what is right passes."""

from __future__ import annotations

import ctypes
import fnmatch
import functools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import doubling, only_case, scaled

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays.compare import POISONS, draw_poisons
from pytest_gpukern.backends.host import HostBackend, HostWorkspace
from pytest_gpukern.check import check_variant
from pytest_gpukern.check.check_variant import Prepared, check, check_nothing_is_late, giving_back, recheck
from pytest_gpukern.check.diagnosis import Fault, IncorrectError
from pytest_gpukern.check.engine import checked_launch
from pytest_gpukern.problems.call_by_name import ProblemError
from pytest_gpukern.problems.dataset import Datasets

N = 8


def checked(
    prepare,
    problem=None,
    *,
    contents=2,
    checked_again=False,
    on_gpu=False,
    backend=None,
    seed=None,
    **arguments,
):
    """Checks a variant of `doubling` on the host; returns it prepared."""
    problem = problem or doubling(N)
    problem.variant("host", **arguments)(prepare)
    case = only_case(problem)
    datasets = Datasets(seed=seed).for_check(problem, case.point, contents=contents, available_bytes=1e9)
    backend = backend or HostBackend()
    backend.on_gpu = on_gpu
    workspace = backend.workspace(datasets[0].inputs, datasets[0].specs)
    prepared = Prepared(case, case.point, backend, workspace, datasets)
    check(prepared, checked_again=checked_again)
    return prepared


def rejected(prepare, problem=None, **arguments):
    with pytest.raises(IncorrectError) as error:
        checked(prepare, problem, **arguments)
    return error.value


def right(a, out):
    return lambda: np.multiply(a, 2, out=out)


@pytest.mark.parametrize(
    ("seed", "reference", "kept"), [(None, True, True), (7, True, False), (None, False, False)]
)
def test_the_hash_of_an_output_is_kept_if_other_sessions_have_its_inputs_too(seed, reference, kept):
    problem = doubling(N) if reference else statistical(lambda runs: None)
    prepared = checked(right, problem, seed=seed, determinism="bitwise")
    errors = prepared.errors_with_bits()
    assert [error.bits is not None for error in errors.values()] == [kept] * len(prepared.errors)
    assert {error.determinism for error in errors.values()} <= {"bitwise"}


def test_the_worst_error_of_all_launches_is_kept():
    def off_by_a_little_first(a, out):
        errors = iter([0.125, 0.25, 0.125])
        return lambda: np.add(2 * a, next(errors), out=out)

    prepared = checked(off_by_a_little_first, doubling(N, tolerance=Tolerance(0, 1)))
    assert prepared.errors["out"].max_abs == pytest.approx(0.25, rel=1e-5)


# what is wrong with the outputs


def leaves_work_undone(a, out):
    async def rest():
        pass

    def launch():
        np.multiply(a, 2, out=out)
        return {"more": rest()}

    return launch


HELD_BEFORE = "right for the inputs that the buffers held before"


def replays_its_first_answer(a, out):
    answers = {}
    return lambda: np.copyto(out, answers.setdefault(a.ctypes.data, 2 * a))


def prepares_in_its_input(a, out):
    double = 2 * a
    a[-1] = 0
    return lambda: np.copyto(out, double)


def fails_to_prepare(a):
    raise RuntimeError("no such kernel")


def beside(array, before=0, behind=0):
    """The array with so many elements of its surroundings, as an index without bounds checks reaches them."""
    start = array.ctypes.data - before * array.itemsize
    count = before + array.size + behind
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(start))


def strays_while_it_prepares(a, out):
    beside(a, behind=1)[-1] = 0
    return right(a, out)


def strays_before_its_input(a, out):
    return lambda: (np.multiply(a, 2, out=out), beside(a, before=3).put(0, 1))


def strays_behind_its_output(a, out):
    return lambda: (np.multiply(a, 2, out=out), beside(out, behind=2).put(-1, 1))


@pytest.mark.parametrize(
    ("broken", "fault", "message"),
    [
        (replays_its_first_answer, Fault.STALE_RESULT, HELD_BEFORE),
        (lambda a, out: functools.partial(np.copyto, out, 2 * a), Fault.STALE_RESULT, HELD_BEFORE),
        (prepares_in_its_input, Fault.INPUT_MODIFIED, "input modified: the launch changed a"),
        (
            fails_to_prepare,
            Fault.LAUNCH_FAILED,
            " in fails_to_prepare: RuntimeError: no such kernel\n    raise RuntimeError(",
        ),
        (lambda a: None, Fault.WRONG_TYPE, "returned NoneType; it must return the function to time"),
        (
            leaves_work_undone,
            Fault.WRONG_TYPE,
            "returned['more']: wrong type: the launch returned the coroutine of ",
        ),
        (strays_while_it_prepares, Fault.OUT_OF_BOUNDS, "written after the end of a"),
        (
            strays_before_its_input,
            Fault.OUT_OF_BOUNDS,
            "a: out of bounds\n  4 bytes written before the beginning of a, the nearest 3 elements away: ",
        ),
        (
            strays_behind_its_output,
            Fault.OUT_OF_BOUNDS,
            "out: out of bounds\n  4 bytes written after the end of out, the nearest 2 elements away: ",
        ),
    ],
)
def test_a_broken_variant_gets_the_diagnosis_of_its_fault(broken, fault, message):
    error = rejected(broken)
    assert error.diagnosis.fault is fault
    assert message in error.diagnosis.message
    assert str(error) == error.diagnosis.message


def test_an_answer_computed_while_preparing_is_rejected_also_where_a_scalar_has_it_prepared_anew():
    def prepares_the_answer(a, k, out):
        answer = a * np.float32(k)
        return lambda: np.copyto(out, answer)

    assert rejected(prepares_the_answer, scaled()).diagnosis.fault is Fault.WRONG_VALUES


def test_what_was_not_written_is_found_also_where_the_reference_is_nan():
    def skips_negative_ones(a, out):
        return lambda: np.sqrt(a, out=out, where=a >= 0)

    def roots(a):
        with np.errstate(invalid="ignore"):
            return np.sqrt(a.astype(np.float64))

    signed = doubling(
        N,
        make_inputs=lambda rng, n: {"a": (rng.random(n) - 0.5).astype(np.float32)},
        reference=roots,
        tolerance=Tolerance(rtol=1e-6),
    )
    assert rejected(skips_negative_ones, signed).diagnosis.fault is Fault.NOT_WRITTEN


@pytest.mark.parametrize("first", [None, ValueError("wrong")])
def test_memory_that_cannot_be_given_back_is_the_error_unless_there_was_one_before(first):
    def fails():
        raise RuntimeError("context lost")

    end = giving_back(fails)
    if first is None:
        with pytest.raises(RuntimeError, match="context lost"):
            end(None, None, None)
        return
    end(type(first), first, None)
    assert first.__notes__ == ["freeing its memory failed, too: RuntimeError: context lost"]


# threads


def test_a_thread_that_would_write_later_is_the_fault_and_not_what_it_has_not_written_yet():
    end = threading.Event()

    def later(a, out):
        return lambda: threading.Thread(target=lambda: end.wait() and np.multiply(a, 2, out=out)).start()

    try:
        assert rejected(later).diagnosis.fault is Fault.STILL_RUNNING
    finally:
        end.set()


def test_a_variant_may_keep_a_pool_of_its_own_that_grows_as_it_is_needed():
    def pooled(a, out):
        parts = [slice(i, i + 2) for i in range(0, N, 2)]
        return lambda: list(pool.map(lambda part: np.multiply(a[part], 2, out=out[part]), parts))

    with ThreadPoolExecutor(4) as pool:
        assert checked(pooled).errors["out"].mismatches == 0


# the second data set


def watched(problem=None, **options):
    """What each launch of a right variant finds in the first word of the output; the variant, prepared."""
    found = []

    def watching(a, out):
        def launch():
            found.append(int(out.view("u4")[0]))
            np.multiply(a, 2, out=out)

        return launch

    return found, checked(watching, problem, **options)


def test_a_launch_that_something_holds_up_makes_no_call_slow(monkeypatch):
    _, prepared = watched(on_gpu=True)
    times = iter([0, 10**9, 10**9, 10**9 + 19 * 10**6, 2 * 10**9, 3 * 10**9])
    monkeypatch.setattr("pytest_gpukern.check.engine.time.perf_counter_ns", lambda: next(times))
    prepared.first_call_ns, prepared.shortest_call_ns, slow = None, 0.0, []
    for _ in range(3):
        checked_launch(prepared)
        slow.append(prepared.is_slow)
    assert slow == [True, False, False], "the first compiles, the third waits for something"
    assert prepared.first_call_ns == 1e9


def answer_of(dataset):
    return np.float32(dataset.expected["out"][0]).view("u4")


@pytest.mark.parametrize(
    ("options", "poisoned", "after"),
    [
        ({}, 2, [1]),
        ({"contents": 3}, 2, [1]),
        ({"contents": 1}, 2, []),
        ({"contents": 1, "checked_again": True}, 1, []),
    ],
)
def test_two_launches_find_different_poisons_and_one_more_the_answer_before(options, poisoned, after):
    """Of one set alone a second launch is made only if no other check follows, of three two over numbers."""
    found, prepared = watched(**options)
    assert len({*found[:poisoned]} & {*POISONS}) == poisoned
    answers = [answer_of(prepared.datasets[number]) for number in after]
    assert found[poisoned : poisoned + len(answers)] == answers
    assert len(found[poisoned + len(answers) :]) == (2 if options.get("contents") == 3 else 0)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_what_was_not_written_is_found_though_a_poison_is_the_right_answer(poison, dtype):
    """Under one of them alone it would pass."""
    answer = np.frombuffer(poison.to_bytes(4, "little") * N * 2, dtype)[:N]
    constant = doubling(
        N, outputs=lambda n: {"out": ((n,), dtype)}, reference=lambda n: answer, tolerance=Tolerance()
    )
    error = rejected(lambda out: lambda: None, constant)
    assert error.diagnosis.fault is Fault.NOT_WRITTEN
    assert f"{N} still hold poison" in error.diagnosis.message


def test_what_behaves_only_where_it_finds_a_poison_that_it_knows_is_found_in_a_run_that_draws_others():
    def knows_the_poison(a, out):
        return lambda: np.multiply(a, 2 if out.view("u4")[0] in POISONS else 3, out=out)

    backend = HostBackend()
    assert backend.poisons == POISONS
    backend.poisons = draw_poisons("another")
    diagnosis = rejected(knows_the_poison, backend=backend).diagnosis
    assert diagnosis.fault is Fault.WRONG_VALUES
    checked(right, backend=backend)


# slow launches on the host


@pytest.mark.parametrize(
    ("slow_ns", "on_gpu", "checked_again", "launched", "of_statistics"),
    [
        (0, False, True, 1, 3),
        (0, False, False, 2, 8),  # nobody would look again
        (0, True, True, 3, 8),
        (1e18, False, True, 3, 8),
    ],
)
def test_a_slow_launch_on_the_host_is_checked_less_where_another_check_follows(
    monkeypatch, slow_ns, on_gpu, checked_again, launched, of_statistics
):
    monkeypatch.setattr(check_variant, "SLOW_ON_HOST_NS", slow_ns)
    how, seen = {"checked_again": checked_again, "on_gpu": on_gpu}, []
    found, prepared = watched(**how)
    assert len(found) == launched
    assert prepared.dataset.seed_offset == 0 or launched > 1
    watched(statistical(seen.extend), **how)
    assert len(seen) == of_statistics


def test_a_slow_launch_whose_scalars_change_is_checked_on_all_since_no_later_check_changes_them(monkeypatch):
    monkeypatch.setattr(check_variant, "SLOW_ON_HOST_NS", 0)
    given = []

    def scale(a, out, k):
        given.append(k)
        return lambda: np.multiply(a, np.float32(k), out=out)

    checked(scale, scaled(), checked_again=True)
    assert len(set(given)) == 2


@pytest.mark.parametrize(
    ("took_ns", "launched", "over_an_answer"),
    [(2e7, True, False), (2e7 + 1, True, True), (5e9, True, True), (5e9 + 1, False, None)],
)
def test_after_timing_a_launch_of_over_5_s_is_not_made_again_and_a_slow_one_finds_an_answer(
    took_ns, launched, over_an_answer
):
    found, prepared = watched(on_gpu=True)
    prepared.turn_to(prepared.datasets[1])
    prepared.run()
    found.clear()
    prepared.shortest_call_ns = took_ns
    recheck([prepared])
    assert bool(found) is launched
    if launched:
        assert found[0] in ([answer_of(prepared.datasets[1])] if over_an_answer else POISONS)


def test_an_output_that_is_updated_held_no_poison():
    problem = doubling(
        N,
        make_inputs=lambda rng, n: {"a": rng.random(n).astype("float32")},
        outputs=lambda n: {},
        reference=lambda a: {"a": 2 * a},
        inout=("a",),
    )
    message = rejected(lambda a: lambda: a.fill(np.nan), problem).diagnosis.message
    assert "are NaN where the reference is not" in message
    assert "before the launch" not in message


@pytest.mark.parametrize(
    ("prepare", "place"),
    [
        (lambda a: lambda: np.linalg.cholesky(a), rf", .*{Path(__file__).name}:\d+ in <lambda>"),
        (lambda a: functools.partial(np.linalg.cholesky, a), ""),
    ],
)
def test_the_innermost_line_of_the_variants_file_is_told_if_one_led_to_an_error_elsewhere(prepare, place):
    message = rejected(prepare).diagnosis.message
    told = re.fullmatch(rf"launch failed: launching host\.\S+{place}: LinAlgError: [^\n]*(\n .*)?", message)
    assert told
    assert bool(told[1]) is bool(place)


# variants that return new arrays


def two_outputs(**changes):
    return doubling(
        N,
        outputs=lambda n: {"x": ((n,), "float32"), "y": ((n,), "float32")},
        reference=lambda a: {"x": 2.0 * a.astype("float64"), "y": -a},
        **changes,
    )


@pytest.mark.parametrize(
    ("returned", "outputs"),
    [
        (lambda a: 2 * a, 1),
        (lambda a: (2 * a, -a), 2),  # in the order in which they are declared
        (lambda a: [2 * a, -a], 2),
        (lambda a: {"y": -a, "x": 2 * a}, 2),
        (lambda a: tuple(np.stack([2 * a, -a])), 2),  # beside each other in one buffer
    ],
)
def test_returned_arrays_are_the_outputs_by_their_order_or_their_names(returned, outputs):
    problem = two_outputs() if outputs == 2 else None
    errors = checked(lambda a: lambda: returned(a), problem, allocates=True).errors
    assert [error.mismatches for error in errors.values()] == [0] * outputs


@pytest.mark.parametrize("number", [np.float64, np.asarray, float])
def test_an_output_of_no_dimension_may_be_returned_as_a_number(number):
    problem = doubling(
        N, outputs=lambda n: {"most": ((), "float64")}, reference=lambda a: np.float64(a.max())
    )

    def most(factor):
        return lambda a: lambda: number(factor * np.float64(a.max()))

    assert checked(most(1), problem, allocates=True).errors["most"].mismatches == 0
    assert rejected(most(2), problem, allocates=True).diagnosis.fault is Fault.WRONG_VALUES


def square(**changes):
    """out = 2·a for a matrix."""
    return doubling(
        N,
        make_inputs=lambda rng, n: {"a": rng.random((n, n)).astype(np.float32)},
        **{"outputs": lambda n: {"out": ((n, n), "float32")}, **changes},
    )


def identity():
    return doubling(N, reference=lambda a: a.astype(np.float64))


def overlapping(buffer):
    return buffer[:-1], buffer[1:]


class Lazy(np.ndarray):
    """An array type of somebody's own, which could compute when it is compared."""


ONLY_NUMPYS = ", but backend host takes numpy.ndarray only"
IN_C_ORDER = 'out: wrong strides: expected (32, 4) bytes (C order), actual (*order="any"*'
SHARED = "out: aliased: it shares memory with the input a; *"
RETURNED = {
    doubling: [
        (lambda a: (2 * a).tolist(), f"out: wrong type: *returned list{ONLY_NUMPYS}*"),
        (lambda a: None, "out: wrong type: *returned NoneType*"),
        (lambda a: (2 * a,), "out: wrong type: *returned tuple*"),
        (lambda a: {"other": 2 * a}, "out: wrong type: the launch returned NoneType*"),
        (lambda a: (2 * a).view(Lazy), f"out: wrong type: *returned test_check.Lazy{ONLY_NUMPYS}*"),
        (lambda a: np.ma.masked_array(2 * a), "out: wrong type: *returned numpy.ma.MaskedArray*"),
        (lambda a: (2 * a)[:-1], "out: wrong shape: expected (8,), actual (7,)*"),
        (lambda a: (2 * a).reshape(2, 4), "out: wrong shape: expected (8,), actual (2, 4)*"),
        (lambda a: 2.0 * a.astype("float64"), "out: wrong dtype: expected float32, actual float64*"),
        (lambda a: 2.0 * a[1:].astype("float64"), "out: wrong shape: expected (8,), actual (7,)*"),
        (lambda a: (2 * a).astype(">f4"), "out: wrong dtype: expected float32, actual >f4*"),
        (lambda a: 3 * a, "out: wrong values: 8 of 8 elements*"),
    ],
    two_outputs: [
        (lambda a: (-a, 2 * a), "x: wrong values*"),
        (lambda a: (2 * a, 2 * a), "y: wrong values*"),
        (lambda a: 2 * a, "y: wrong type: the launch returned NoneType, but *"),
        (lambda a: (2 * a,), "wrong type: the launch returned 1 arrays for 2 outputs: x, y*"),
        (lambda a: (2 * a, -a, a), "wrong type: the launch returned 3 arrays for 2 outputs: x, y*"),
        (lambda a: overlapping(np.empty(N + 1, "f4")), "y: aliased: it shares memory with the output x; *"),
    ],
    square: [  # before its values
        (lambda a: np.asfortranarray(2 * a), IN_C_ORDER),
        (lambda a: (2 * a.T.copy()).T, IN_C_ORDER),
        (lambda a: np.repeat(2 * a, 2, axis=1)[:, ::2], IN_C_ORDER),
        (lambda a: (2 * a[::-1, ::-1])[::-1, ::-1], IN_C_ORDER),
        (lambda a: np.broadcast_to(np.float32(2), a.shape), IN_C_ORDER),
    ],
    identity: [
        (lambda a: a, SHARED),
        (lambda a: a[:], SHARED),
        (lambda a: a.reshape(2, 4).reshape(N), SHARED),
    ],
}


@pytest.mark.parametrize(
    ("problem", "returned", "told"), [(of, *row) for of, rows in RETURNED.items() for row in rows]
)
def test_something_else_than_the_declared_arrays_is_rejected(problem, returned, told):
    diagnosis = rejected(lambda a: lambda: returned(a), problem(), allocates=True).diagnosis
    assert diagnosis.fault in told
    assert fnmatch.fnmatchcase(diagnosis.message, told)


def test_an_output_may_be_declared_in_any_order():
    def in_any_order():
        return square(outputs=lambda n: {"out": Output((n, n), "float32", order="any")})

    fortran = checked(lambda a: lambda: np.asfortranarray(2 * a), in_any_order(), allocates=True)
    assert fortran.errors["out"].mismatches == 0
    wrong = rejected(lambda a: lambda: 2 * a.T, in_any_order(), allocates=True)
    assert wrong.diagnosis.fault is Fault.WRONG_VALUES


# memory of their own


def test_a_buffer_that_an_earlier_launch_returned_is_aliased():
    """Its values are right, and those of the earlier result have just changed under its owner's hands."""

    def static(a):
        buffer = np.empty_like(a)
        return lambda: np.multiply(a, 2, out=buffer)

    diagnosis = rejected(static, allocates=True).diagnosis
    assert diagnosis.fault is Fault.ALIASED
    assert "shares memory with the out that an earlier launch returned; " in diagnosis.message


# statistical checks


def statistical(check):
    return doubling(N, reference=None, check=check)


def test_a_statistical_check_sees_point_inputs_and_outputs_of_every_seed():
    runs_seen = []

    def look(runs):
        runs_seen.extend(runs)

    checked(right, statistical(look))
    assert [run.point for run in runs_seen] == [{"n": N}] * 8
    assert all(np.array_equal(run.outputs["out"], 2 * run.inputs["a"]) for run in runs_seen)
    assert len({run.inputs["a"].tobytes() for run in runs_seen}) == 8


def test_a_complaint_of_the_statistical_check_is_the_diagnosis():
    error = rejected(right, statistical(lambda runs: f"mean is off in {len(runs)} runs"))
    assert error.diagnosis.fault is Fault.STATISTICS
    assert error.diagnosis.message == "statistics: mean is off in 8 runs"
    with pytest.raises(ProblemError, match=r"check returned array.*, of type ndarray: it must return None"):
        checked(right, statistical(lambda runs: np.ones(3, bool)))


def test_without_a_reference_a_gap_is_still_found():
    error = rejected(lambda a, out: lambda: right(a[:-1], out[:-1])(), statistical(lambda runs: None))
    assert error.diagnosis.fault is Fault.NOT_WRITTEN
    assert error.diagnosis.message.startswith(
        "out: 1 of 8 elements still hold poison, the first at [7]\n  never written, or added to"
    )


def test_a_reference_beside_a_statistical_check_is_compared_too():
    triples = lambda a, out: lambda: np.multiply(a, 3, out=out)  # noqa: E731
    assert rejected(triples, doubling(N, check=lambda runs: None)).diagnosis.fault is Fault.WRONG_VALUES


# work that outlives the call


@pytest.fixture
def late(monkeypatch):
    """What is written late, by what workspaces say; `.asked` has for how long the device was held."""
    found = SimpleNamespace(outputs=[], asked=[])

    def written_late(self, launch, *, hold_ns):
        found.asked.append(hold_ns)
        launch()
        return found.outputs

    monkeypatch.setattr(HostWorkspace, "written_late", written_late)
    return found


def test_outputs_that_are_written_after_the_given_stream_was_done_are_a_fault_and_others_are_not(late):
    calls = []

    def counted(a, out):
        return lambda: (calls.append(1), np.multiply(a, 2, out=out))

    prepared = checked(counted, on_gpu=True)
    prepared.shortest_call_ns, before = 2e6, len(calls)
    check_nothing_is_late(prepared)
    assert (late.asked, len(calls)) == ([3e6], before + 1)
    prepared.shortest_call_ns = 1e9
    check_nothing_is_late(prepared)
    assert late.asked[1:] == [2.1e7], "a longer call needs no longer hold"
    late.outputs = ["out"]
    with pytest.raises(IncorrectError) as error:
        check_nothing_is_late(prepared)
    assert error.value.diagnosis.fault is Fault.STILL_RUNNING
    assert "out: still running: written after the given stream" in error.value.diagnosis.message


@pytest.mark.parametrize(
    "why", ["on the host", "host data", "a stream that waits for others", "very slow", "a sanitizer"]
)
def test_nobody_looks_where_it_would_show_nothing(late, monkeypatch, why):
    prepared = checked(right, on_gpu=why != "on the host", host_data=why == "host data")
    if why == "a stream that waits for others":
        prepared.backend.timed_stream = SimpleNamespace(is_nonblocking=False)
    if why == "very slow":
        prepared.shortest_call_ns = 1e9 + 1
    if why == "a sanitizer":
        monkeypatch.setattr("pytest_gpukern.check.check_variant.sanitizing_tool", lambda: "memcheck")
    check_nothing_is_late(prepared)
    assert not late.asked
