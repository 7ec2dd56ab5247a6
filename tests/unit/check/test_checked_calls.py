"""Checks around the calls of a user's own callable: each broken one is rejected for the right reason."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import re
from collections import deque
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from dlpack_exporter import Exporter

from pytest_gpukern import Tolerance
from pytest_gpukern.backends.foreign_array import refuse_what_proves_nothing
from pytest_gpukern.check import engine
from pytest_gpukern.check.check_call import CheckedCalls, GuardedArrays, Turn
from pytest_gpukern.check.diagnosis import Fault, IncorrectError
from pytest_gpukern.check.verify import check_against_reference
from pytest_gpukern.measure.measure import Repeated
from pytest_gpukern.measure.rounds import Rounds
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.result import Determinism

X = np.linspace(1, 2, 9)
RNG = np.random.default_rng(0)


def checks_of(function, *, fixed=True, **declared):
    """The checks of the calls of a test with such a marker."""
    marker = MarkerOptions(**declared)
    return CheckedCalls(function, marker, "test_it", lambda: None, GuardedArrays(None), fixed=fixed)


def make(checks, function, args, kwargs, place):
    return checks.make(Turn(functools.partial(function, *args, **kwargs), args, kwargs), place).returned


def checked(
    function, *args, calls=3, determinism=None, outputs=(), fixed=True, inout=(), written=None, **kwargs
):
    """Makes so many checked calls; returns the checks and what the last call returned."""
    declared = {"outputs": outputs, "inout": inout, "written": written or {}, "determinism": determinism}
    checks = checks_of(function, fixed=fixed, **declared)
    made = [make(checks, function, args, kwargs, f"in call {number + 1}") for number in range(calls)]
    return checks, made[-1]


def rejected(function, *args, **kwargs):
    with pytest.raises(IncorrectError) as error:
        checked(function, *args, **kwargs)
    return error.value.diagnosis


def double(x, out):
    out[...] = 2 * x


def verified(checks, actual, expected, tolerance=Tolerance()):  # noqa: B008 - frozen
    name = checks.seen.name_of(actual, np.asarray(actual))
    return checks.seen.diagnose_others(name, expected, tolerance)


def test_a_call_that_reads_what_its_output_held_is_found_by_verify_and_without_it_in_the_end():
    def adds(x, out):
        out += x

    out = np.zeros(9, "int64")
    checks, _ = checked(adds, np.arange(1, 10), out, outputs=("out",))
    diagnosis = verified(checks, out, out.copy())
    assert diagnosis.fault is Fault.WRONG_VALUES
    assert "in one of 3 calls on the same inputs, not in the one verified" in diagnosis.message

    checks, _ = checked(adds, np.arange(1, 10), out, outputs=("out",))
    diagnosis = checks.seen.unsettled()
    assert diagnosis.fault is Fault.WRONG_VALUES
    assert "when the output holds something else before" in diagnosis.message


@pytest.mark.parametrize(
    "right",
    [
        lambda x, out: np.copyto(out, np.sort(x)),
        lambda x, out: (out.fill(0), np.add(out, x, out=out)),
        lambda x, out: np.copyto(out, x) if x[0] < 9 else out.fill(0),  # exits early
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int8", "bool"])
def test_what_is_right_over_any_contents_passes(right, dtype):
    x, out = np.arange(1, 10).astype(dtype), np.empty(9, dtype)
    checks, _ = checked(right, x, out, calls=6, outputs=("out",))
    assert np.array_equal(out, x)
    assert checks.seen.determinism("out") is Determinism.BITWISE
    assert checks.seen.unsettled() is None
    assert verified(checks, out, x) is None


class Holder:
    def __init__(self, x):
        self.x = x

    def __call__(self, out):
        change(self.x, out)


class Slotted:
    __slots__ = ("x",)
    __init__, __call__ = Holder.__init__, Holder.__call__


Given = dataclasses.make_dataclass("Given", ["x"])
NAMED = SimpleNamespace()


def change(x, out):
    x[3] = 0
    out[...] = x


def names_a_global(x):
    NAMED.x = x
    return lambda out: change(NAMED.x, out)


def names_its_own(out):
    change(names_its_own.x, out)


@pytest.mark.parametrize(
    "reaching",
    {
        "argument": lambda x: (change, x),
        "closure": lambda x: (lambda out: change(x, out),),
        "closure in a closure": lambda x: (lambda out, inner=lambda: x: change(inner(), out),),
        "default": lambda x: (lambda out, x=x: change(x, out),),
        "partial": lambda x: (functools.partial(change, x),),
        "captured list": lambda x: (functools.partial(lambda out, held: change(held[0], out), held=[x]),),
        "closure in a partial": lambda x: (functools.partial(lambda _, out: change(x, out), 1),),
        "global": lambda x: (names_a_global(x),),
        "attribute of a callable": lambda x: (Holder(x),),
        "slot": lambda x: (Slotted(x),),
        "attribute of a method's object": lambda x: (Holder(x).__call__,),
        "a method's object": lambda x: (MethodType(change, x),),
        "closure in a method": lambda x: (MethodType(lambda _, out: change(x, out), 1),),
        "attribute of an argument": lambda x: (lambda held, out: change(held.x, out), Holder(x)),
        "dataclass": lambda x: (lambda held, out: change(held.x, out), Given(x)),
        "attribute of a class": lambda x: (type("Kept", (Holder,), {"x": x, "__init__": object.__init__})(),),
        "attribute of a function": lambda x: (vars(names_its_own).update(x=x) or names_its_own,),
        "object in a list": lambda x: (lambda several, out: change(several[0].x, out), [Holder(x)]),
    }.values(),
)
def test_an_input_that_is_written_is_found_however_the_call_reaches_it(reaching):
    function, *given = reaching(X.copy())
    diagnosis = rejected(function, *given, np.empty(9), outputs=(len(given),))
    assert diagnosis.fault is Fault.INPUT_MODIFIED


def test_what_a_call_reaches_may_be_read_be_its_output_and_belong_to_a_library():
    out, kept = np.empty(9), np.ones(9)
    checked(lambda into: (np.copyto(out, kept), np.copyto(into, out)), out, outputs=("into",))
    around = []
    around.append(around)
    checked(lambda into: around and np.copyto(into, kept), out, outputs=("into",))
    counter = functools.partial(lambda log, x, out: (log.append(1), double(x, out)), [], X)
    checked(counter, out, outputs=(0,))
    function = lambda given: np.copyto(given.x, kept)  # noqa: E731
    checked(function, Given(out), outputs=("given.x",))
    checked(function, Given(out), outputs=("given",))
    with pytest.raises(ValueError, match="no such argument"):
        checked(function, Given(out), outputs=("given.y",))


def test_outputs_that_overlap_inputs_or_each_other_are_refused_and_not_even_poisoned():
    both = np.arange(10.0)
    for args in ((both[1:], both[:-1]), (both, both)):
        diagnosis = rejected(double, *args, outputs=("out",))
        assert diagnosis.fault is Fault.ALIASED
        assert "out: aliased: it shares memory with the input x; declare arrays that" in diagnosis.message
    two = rejected(lambda a, b: None, both[:5], both[4:], outputs=(0, 1))
    assert "b: aliased: it shares memory with the output a" in two.message
    assert np.array_equal(both, np.arange(10.0))


def noisy(scale):
    steps = itertools.cycle([2.0, 1.0, 0.0])

    def call(x, out):
        out[...] = 2 * x + scale * next(steps)

    return call


def test_calls_that_differ_within_the_tolerance_are_tolerant_and_outside_it_wrong():
    out = np.empty(9)
    checks, _ = checked(noisy(1e-12), X, out, outputs=("out",))
    assert checks.seen.determinism("out") is Determinism.TOLERANT
    assert verified(checks, out, 2 * X, Tolerance(rtol=1e-9)) is None
    diagnosis = verified(checks, out, 2 * X, Tolerance(atol=1.5e-12))
    assert diagnosis.fault is Fault.WRONG_VALUES
    assert checks.seen.unsettled() is None, "it was verified"
    checks, _ = checked(noisy(1), X, out, outputs=("out",), determinism=Determinism.TOLERANT)
    assert checks.seen.unsettled() is None, "they may differ as much as they like"


def test_an_output_that_is_read_only_is_refused():
    out = np.empty(9)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is ndarray of dtype float64, which is read-only: "):
        checked(double, X, out, outputs=("out",))


def test_an_output_of_dlpack_is_checked_and_exported_for_no_timed_call():
    x, out = Exporter(X), Exporter(np.empty(9))
    checks, _ = checked(lambda x, out: double(x.array, out.array), x, out, outputs=(1,))
    exports = out.exports
    checks.take_timed()
    assert (out.exports, checks.seen.determinism("out")) == (exports, Determinism.BITWISE)
    most = rejected(lambda x, out: double(x.array[1:], out.array[1:]), x, out, outputs=(1,))
    assert "out: 1 of 9 elements still hold poison" in most.message


def test_an_array_that_is_immutable_or_tells_no_address_is_no_output():
    """JAX copies what a call is donated as long as we hold it, so we hold results only."""
    immutable = type("ArrayImpl", (Exporter,), {"__module__": "jaxlib._jax"})
    x = immutable(X)
    checks, _ = checked(lambda x: immutable(2 * x.array), x)
    assert (set(checks.inputs), set(checks.seen.outputs)) == (set(), {"returned"})
    checks, _ = checked(lambda out: double(x.array, out), np.empty(9), outputs=("out",))
    assert not checks.digests_before()
    with pytest.raises(ValueError, match=r"out is Array.*, which is read-only: .* what the call returns"):
        checked(double, X, immutable(X), outputs=("out",))
    for check in (lambda of, x: checked(double, x, of, outputs=(1,)), refuse_what_proves_nothing):
        with pytest.raises((ValueError, TypeError), match="name the tensor it was made from"):
            check(SimpleNamespace(data_ptr=0), X)


# which outputs a test compares


def split(x, lo, hi):
    lo[...], hi[...] = x - 1, x + 1


SPLIT = [
    ("an output", lambda x, lo, hi: [lo], ("hi",)),
    ("a view of it", lambda x, lo, hi: [lo[::2]], ("hi",)),
    ("an input", lambda x, lo, hi: [x], ("lo", "hi")),
    ("a copy", lambda x, lo, hi: [hi.copy()], ("lo",)),
    ("converted", lambda x, lo, hi: [lo.astype("complex128")], ("hi",)),
    ("less precise", lambda x, lo, hi: [lo.astype("float32")], ("lo", "hi")),
    ("a view of a copy", lambda x, lo, hi: [lo.reshape(3, 3).copy().T[1:]], ("hi",)),
    ("a part of a copy", lambda x, lo, hi: [hi[1:].copy()], ("lo",)),
    ("too small a part", lambda x, lo, hi: [hi[5:6].copy()], ("lo", "hi")),
    ("both in one array", lambda x, lo, hi: [np.stack([hi, lo])], ()),
    ("one of both", lambda x, lo, hi: [np.stack([hi, lo])[:1]], ("lo",)),
    ("a list of both", lambda x, lo, hi: [[hi[::2], lo[::2]]], ()),
    ("a list of copies", lambda x, lo, hi: [[hi.copy(), lo.copy()]], ()),
    ("one copy twice", lambda x, lo, hi: [hi.copy(), hi.copy()], ("lo",)),
    ("a result of both", lambda x, lo, hi: [lo + hi], ("lo", "hi")),
]


@pytest.mark.parametrize(("what", "left"), [each[1:] for each in SPLIT], ids=[each[0] for each in SPLIT])
def test_a_declared_output_is_compared_if_it_or_a_copy_is_verified(what, left):
    lo, hi = np.empty(9), np.empty(9)
    seen = checked(split, X, lo, hi, outputs=("lo", "hi"))[0].seen
    for actual in what(X, lo, hi):
        seen.note_compared(seen.name_of(actual, np.asarray(actual)), actual, np.asarray(actual))
    assert seen.never_compared == left


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_of_two_equal_outputs_each_is_compared_by_a_copy_of_its_own(dtype):
    seen = checked(lambda lo, hi: (lo.fill(0), hi.fill(0)), *np.empty((2, 9)), outputs=(0, 1))[0].seen
    for left in (("hi",), ()):
        copy = np.zeros(9, dtype)
        seen.note_compared(seen.name_of(copy, copy), copy, copy)
        assert seen.never_compared == left


def test_a_returned_copy_of_an_output_counts_for_it_also_where_calls_differ():
    noise = itertools.count()

    def fetches(x, out):
        out[...] = x + next(noise)
        return out.copy()

    checks, first = checked(fetches, X, np.empty(9), outputs=("out",), determinism=Determinism.TOLERANT)
    checks.seen.note_compared(checks.seen.name_of(first, first), first, first)
    assert not checks.seen.never_compared


FORMS = {
    "transposed": lambda y: [y.T],
    "a transposed copy": lambda y: [y.copy().T],
    "in halves": lambda y: [y[:2], y[2:]],
    "in rows": list,
    "reshaped and moved": lambda y: [np.moveaxis(y.reshape(2, 2, 9), 2, 0)],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_returned_array_that_is_verified_in_another_form_has_to_be_the_same_in_each_call(form):
    calls = itertools.count()
    table = np.arange(36.0).reshape(4, 9)
    checks, result = checked(lambda x: x * (3 if next(calls) == 0 else 2), table)
    assert checks.seen.unsettled() is None, "nobody looks at it"
    for part, expected in zip(form(result), form(2 * table), strict=True):
        options = {"seen": checks.seen, "hashes": False, "asks_what_else": False}
        assert check_against_reference("y", part, expected, None, None, **options).diagnosis is None
    assert "calls on the same inputs differ; verify" in checks.seen.unsettled().message


class Plan:
    def __init__(self):
        self.work, self.out = np.empty(9), np.empty(9)

    def __call__(self, x):
        np.multiply(x, 2, out=self.work)
        np.add(self.work, 1, out=self.out)

    run = __call__


@pytest.mark.parametrize("call", [lambda plan: plan, lambda plan: plan.run])
def test_what_an_object_holds_is_declared_by_its_own_name(call):
    plan = Plan()
    checks, _ = checked(call(plan), X, outputs=("self.out", "self.work"))
    assert verified(checks, plan.out, 2 * X + 1) is None
    with pytest.raises(IncorrectError, match=r"the call changed self\.work; declare arrays that it writes"):
        checked(call(Plan()), X, outputs=("self.out",))


def test_a_keyword_of_a_partial_is_declared_by_its_name():
    out = np.empty(9)
    checks, _ = checked(functools.partial(np.multiply, 2, out=out), X, outputs=("out",))
    assert verified(checks, out, 2 * X) is None


class Unslotted:
    def __init__(self, y):
        self.y = y


class WithSlots:
    __slots__ = ("x", "y")
    __init__ = Unslotted.__init__


@pytest.mark.parametrize("held", [Unslotted, WithSlots, lambda y: SimpleNamespace(y=y), lambda y: deque([y])])
def test_an_array_in_an_object_that_is_returned_is_a_result(held):
    checks, returned = checked(lambda x: held(2 * x), X)
    (output,) = checks.seen.outputs.values()
    assert len(output.bits) == 3
    assert output.value is (returned[0] if isinstance(returned, deque) else returned.y)


def test_where_each_call_has_fresh_outputs_the_last_may_be_compared():
    lo, hi = np.empty((2, 9))
    checks = fresh_calls(split, [(X, *np.empty((2, 9))), (X + 1, lo, hi)], outputs=("lo", "hi"))
    checks.seen.note_compared(checks.seen.name_of(hi, hi), hi, hi)
    assert checks.seen.never_compared == ("lo",)


# what is returned


def test_new_arrays_that_are_returned_are_compared_from_call_to_call():
    checks, first = checked(lambda x: (2 * x, {"y": 3 * x}), X)
    assert checks.seen.determinism(checks.seen.name_of(first[0], first[0])) is Determinism.BITWISE
    assert checks.seen.name_of(first[1]["y"], first[1]["y"]) == "returned[1]['y']"
    assert checks.seen.name_of(first[0].copy(), first[0].copy()) == "returned[0]", "a copy of it"
    assert checks.seen.name_of(X, X) is None


@pytest.mark.parametrize("view", [np.transpose, np.ravel, lambda x: x.view("i8")])
def test_an_argument_in_another_form_is_no_new_result_which_is_noted(view):
    """No fault, since the argument may be what the call has written."""
    square, out = np.arange(9.0).reshape(3, 3), np.empty((3, 3))
    for function in (view, lambda x: view(np.add(x, 1, out=x))):
        checks, _ = checked(function, square)
        (note,) = checks.notes
        assert re.match(r"returned is a view of all of [ax], not a new result: declare", note.text)
        assert not checks.wanted_after_timing
    for right in (lambda x, out: np.multiply(x, 3, out=out)[:], lambda x, out: view(2 * x)):
        assert checked(right, square, out)[0].notes == {}


def test_memory_that_is_handed_out_again_is_noted_and_copied_before_the_next_call():
    pool, steps = [np.empty(9)], iter([0, 0, 0, 0, 1, 0])

    def hands_out_again(x):
        np.add(2 * x, next(steps), out=pool[0])
        return pool[0][:]

    for wrong in (False, True):
        checks, last = checked(hands_out_again, X)
        assert [note.text.partition(",")[0] for note in checks.notes] == [
            "returned lies in the same memory after each call"
        ]
        assert np.array_equal(last, 2 * X)
        assert bool(verified(checks, last, 2 * X)) == wrong, "the second call left something else there"

    checks, _ = checked(lambda x: np.multiply(2, x, out=pool[0]), X)
    assert checks.seen.determinism("returned") is Determinism.BITWISE
    assert not checks.notes, "one array may be returned again"


def test_an_array_that_the_callable_has_at_hand_may_be_written_in_every_call():
    """As `lambda: ufunc(x, out=out)` of Numba's does, which returns a new object for `out`."""
    out = np.empty(9)
    bound = MethodType(lambda holder, x: np.multiply(2, x, out=holder.x)[:], Given(out))
    for function in (bound, lambda x: np.multiply(2, x, out=out)[:]):
        assert checked(function, X)[0].notes == {}
    for declared in ((), ("out",)):  # all of an argument, too
        checked(lambda x, out: np.add(x, x, out=out)[:], X, out, outputs=declared)
    checks, _ = checked(lambda x: np.multiply(2, x, out=out), X)
    assert checks.seen.determinism("returned") is Determinism.BITWISE, "one object can be looked at again"


# how often


def wants_another(checks, calls, last_ns):
    checks.shortest_call_ns = last_ns
    return checks.wants_another(calls)


@pytest.mark.parametrize("returned", [None, "done", object()])
def test_without_arrays_or_numbers_nothing_is_called_again(returned):
    checks, _ = checked(lambda: returned, calls=1)
    assert not wants_another(checks, 1, 1.0)
    assert not checks.wanted_after_timing


def test_calls_are_repeated_as_long_as_they_are_quick():
    checks, _ = checked(lambda x: 2 * x, X, calls=1)
    assert wants_another(checks, 1, 1e9)
    assert not wants_another(checks, 1, 1e9 + 1)
    assert wants_another(checks, 2, 1e8)
    assert not wants_another(checks, 2, 1e8 + 1)
    assert not wants_another(checks, 3, 1.0)
    checks, _ = checked(double, X, np.empty(9), calls=1, outputs=("out",))
    assert wants_another(checks, 1, 1e12), "the other poison"


@pytest.mark.parametrize(
    ("call_ns", "launches"), [(0.0, 200), (75_000.0, 200), (75_400.0, 198), (1e6, 15), (1.5e7, 1), (1.6e7, 0)]
)
def test_as_many_launches_are_compared_by_hash_as_take_15_ms_and_200_at_most(call_ns, launches):
    assert engine.worth_repeating(call_ns) == launches


def test_determinism_of_nothing_is_refused():
    checks, _ = checked(lambda: None, calls=1, determinism=Determinism.BITWISE)
    with pytest.raises(
        ValueError, match=r"test_it: gpu_benchmark\(determinism='bitwise'\): the call returns no"
    ):
        wants_another(checks, 1, 1.0)


# fresh arguments


def fresh_calls(function, made, **declared):
    checks = checks_of(function, fixed=False, **declared)
    for args in made:
        make(checks, function, args, {}, "in a call")
    return checks


def test_fresh_arguments_are_checked_call_by_call_and_compared_where_the_inputs_are_equal():
    equal = [(X.copy(), np.empty(9)) for _ in range(3)]
    checks = fresh_calls(double, equal, outputs=(1,))
    assert checks.seen.determinism("out") is Determinism.BITWISE
    other = [(X + step, np.empty(9)) for step in range(3)]
    checks = fresh_calls(double, other, outputs=(1,))
    assert checks.seen.determinism("out") is None
    assert checks.seen.unsettled() is None
    scalars = [(X, step, np.empty(9)) for step in range(3)]
    checks = fresh_calls(lambda x, a, out: double(a * x, out), scalars, outputs=(2,))
    assert checks.seen.determinism("out") is None


# updated in place, written in part, inside containers


def counts(data, into):
    np.add.at(into, data, 1)


DATA = np.array([0, 1, 1, 3, 3, 3])


@pytest.mark.parametrize("inout", [(1,), ("into",)])
def test_what_a_call_updates_is_put_back_before_each(inout):
    into = np.array([10, 20, 30, 40])
    checks, _ = checked(counts, DATA, into, inout=inout)
    assert into.tolist() == [11, 22, 30, 43], "updated once, however often it was called"
    assert verified(checks, into, np.array([11, 22, 30, 43])) is None
    assert checks.seen.unsettled() is None
    assert checks.seen.determinism("into") is Determinism.BITWISE


def test_an_update_that_is_another_in_one_call_is_found_by_verify_and_without_it():
    calls = itertools.count()

    def once_wrong(data, into):
        counts(data, into)
        into[0] += next(calls) == 1

    into = np.zeros(4, int)
    checks, _ = checked(once_wrong, DATA, into, inout=(1,))
    assert "  calls on the same inputs differ; verify" in checks.seen.unsettled().message
    assert "in one of 3 calls" in verified(checks, into, np.array([1, 2, 0, 3])).message


COPIES = {"float64": np.float64, "raveled": np.ravel, "listed": np.ndarray.tolist}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("wrong_by", [0.0, 1e-7, 1.0])
def test_a_copy_that_is_converted_or_reshaped_stands_for_its_output_in_all_calls(copied, wrong_by):
    """Also with the bounds of the output's own dtype, where the test gives none."""
    calls = itertools.count()

    def thirds():
        return (X / 3 + wrong_by * (next(calls) == 0)).astype("f4").reshape(3, -1)

    checks, result = checked(thirds)
    expected = np.asarray(copied((X / 3).reshape(3, -1)))
    options = {"hashes": False, "asks_what_else": False}
    check = check_against_reference("y", copied(result), expected, None, None, seen=checks.seen, **options)
    assert ("in one of 3 calls" in check.diagnosis.message) if wrong_by == 1 else check.diagnosis is None


def test_in_place_an_array_may_be_given_twice():
    x = X.copy()
    checks, _ = checked(lambda a, b, out: np.add(a, b, out=out), x, X, x, inout=("out",))
    assert np.array_equal(x, 2 * X)
    assert verified(checks, x, 2 * X) is None


def test_an_update_in_arguments_made_for_each_call_is_left_alone():
    into = np.zeros(4, int)
    checks = fresh_calls(counts, [(DATA, into)] * 2, inout=(1,))
    assert into.tolist() == [2, 4, 0, 6]
    assert checks.restored(SOME) is SOME


SOME = Repeated(lambda: None)


@pytest.mark.parametrize("step", [1, 2])
def test_each_timed_execution_finds_an_update_put_back_also_one_that_is_made_again(step):
    into = np.zeros(4 * step, int)[::step]
    into[...] = [10, 20, 30, 40]
    checks, _ = checked(counts, DATA, into, inout=(1,))
    executions = checks.timed(checks.restored(Repeated(functools.partial(counts, DATA, into))))
    for iteration in executions.take(3, cold=False):
        for one in (iteration, iteration.again()):
            one.execute()
            assert into.tolist() == [11, 22, 30, 43]
    checks.inspect()
    assert checks.seen.determinism("into") is Determinism.BITWISE


def test_what_is_written_in_part_is_not_put_back_before_each_timed_execution():
    def both(into, out):
        into += 1
        out[1:] = 2

    into, out = np.zeros(4, int), np.zeros(4)
    checks, _ = checked(both, into, out, inout=("into",), outputs=("out",), written={"out": np.s_[1:]})
    (iteration,) = checks.restored(Repeated(functools.partial(both, into, out))).take(1, cold=False)
    into[0] = out[0] = 9
    iteration.execute()
    assert (into.tolist(), out.tolist()) == ([1, 1, 1, 1], [9, 2, 2, 2])


@pytest.mark.parametrize(("name", "differ"), [("bfloat16", False), ("float32", True)])
def test_results_that_are_never_verified_may_differ_by_the_tolerance_of_their_dtype(name, differ):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name, np.dtype("float32"))
    noise = itertools.count()

    def adds(out):
        out[...] = (1 + 2.0**-7 * (next(noise) % 2)) * np.ones(9)

    checks, _ = checked(adds, np.empty(9, dtype), outputs=(0,))
    assert (checks.seen.unsettled() is not None) is differ


def test_rounds_do_not_put_back_what_is_updated():
    checks, _ = checked(counts, DATA, np.zeros(4, int), inout=(1,))
    with pytest.raises(ValueError, match=r"gpu_benchmark\(inout=…\) restores .*, which rounds cannot: call"):
        checks.restored(Rounds(counts))


def inner(x, out):
    out[1:-1] = 2 * x[1:-1]


MASK = np.arange(9) % 8 > 0


@pytest.mark.parametrize("region", [np.s_[1:-1], MASK, (slice(1, -1),)], ids=["slice", "mask", "tuple"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
def test_what_a_call_writes_in_part_is_poisoned_there_and_stays_elsewhere(region, dtype):
    out = np.ones(9, dtype)
    checks, _ = checked(inner, X.astype(dtype), out, outputs=(1,), written={1: region})
    expected = np.ones(9, dtype)
    inner(X.astype(dtype), expected)
    assert np.array_equal(out, expected)
    assert verified(checks, out, expected) is None
    assert checks.seen.unsettled() is None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"outputs": (1,), "written": {0: np.s_[1:]}}, "x is not in outputs="),
        ({"inout": (1,), "written": {1: np.s_[1:]}}, "out is not in outputs="),
        ({"outputs": (1,), "written": {1: np.s_[9:]}}, r"selects no element of shape \(9,\)"),
        ({"outputs": (1,), "written": {1: np.ones(8, bool)}}, "boolean index did not match"),
        ({"outputs": (1,), "inout": ("out",)}, "out is in outputs= and in inout="),
        ({"inout": (7,)}, r"gpu_benchmark\(inout=7\): the call has no such argument"),
    ],
)
def test_a_declaration_that_does_not_fit_the_call_is_refused(declared, message):
    with pytest.raises(ValueError, match=message):
        checked(double, X, np.empty(9), **declared)


def in_a_tuple(grid, arrays):
    double(*arrays)


def test_an_output_in_a_tuple_is_poisoned_and_the_input_beside_it_must_stay():
    out = 2 * X
    checks, _ = checked(in_a_tuple, (1,), (X, out), outputs=("1[1]",))
    assert verified(checks, out, 2 * X) is None
    assert rejected(lambda grid, arrays: None, (1,), (X, 2 * X), outputs=("1[1]",)).fault is Fault.NOT_WRITTEN

    def tramples(grid, arrays):
        double(*arrays)
        arrays[0][0] = 5

    assert "arrays[0]" in rejected(tramples, (1,), (X.copy(), out), outputs=("arrays[1]",)).message


# what is wrong in any case


def writes(start, stop):
    return lambda x, out: double(x[start:stop], out[start:stop])


def trampling(call):
    return lambda x, out: (call(x, out), x.fill(5))


OUT, BITWISE, INNER = {"outputs": (1,)}, {"determinism": Determinism.BITWISE}, {"written": {1: np.s_[1:-1]}}
UPDATE, FRESH = {"inout": (1,)}, {"fixed": False}


@pytest.mark.parametrize(
    ("call", "declared", "fault", "message"),
    [
        (writes(0, 8), OUT | FRESH, Fault.NOT_WRITTEN, "1 of 9 *, the first at [8]"),
        (writes(1, 7), OUT | INNER, Fault.NOT_WRITTEN, "1 of 9 *, the first at [7], in call 2"),
        (
            writes(1, 9),
            OUT | INNER,
            Fault.WRONG_VALUES,
            "1 element changed outside written=, *[8], in call 1",
        ),
        (trampling(double), OUT | FRESH, Fault.INPUT_MODIFIED, "the call changed x"),
        (trampling(np.copyto), UPDATE, Fault.INPUT_MODIFIED, "the call changed x"),
        (lambda x, out: x[1:], {}, Fault.ALIASED, "returned: *: it shares memory with the input x; declare"),
        (lambda x, out: (double(x, out), x[:])[1], OUT, Fault.ALIASED, "returned: *: it *with the input x"),
        (lambda x, out: RNG.random(9), BITWISE, Fault.NOT_DETERMINISTIC, "returned: *: 2 results from 2 *"),
    ],
)
def test_a_broken_call_gets_the_diagnosis_of_its_fault(call, declared, fault, message):
    diagnosis = rejected(call, X.copy(), np.ones(9), **declared)
    assert diagnosis.fault is fault
    assert fnmatch.fnmatchcase(diagnosis.message, f"*{message.replace('[', '[[]')}*")
