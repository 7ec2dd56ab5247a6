"""Arrays of a user's own, on the host, in the simulator's type and in what stands for a device's memory."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import fnmatch
import functools
import itertools
import sys
import weakref
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import host_cuda
import numpy as np
import pytest
from dlpack_exporter import CUDA, ROCM, Exporter
from host_cuda import OnDevice

from pytest_gpukern.arrays.compare import POISONS, poison_bytes, still_poisoned
from pytest_gpukern.backends.foreign_array import (
    leaves,
    refuse_what_proves_nothing,
    to_host,
    users_array,
    why_untrusted,
)


@pytest.fixture
def device(monkeypatch):
    """Device memory is the host's; hashes are of its bytes."""
    host_cuda.install(monkeypatch)
    return lambda array: array.view(OnDevice)


class Oldest(Exporter):
    def __dlpack__(self):
        return super().__dlpack__()


@pytest.fixture(params=["host", "device", "host by DLPack", "device by DLPack"])
def placed(request):
    device = request.getfixturevalue("device")
    on_device = functools.partial(Oldest, device=CUDA)
    made = {"host": np.asarray, "device": device, "host by DLPack": Exporter, "device by DLPack": on_device}
    return made[request.param]


BASE = np.arange(60, dtype="float32").reshape(5, 12)
WORDS = np.full(3, 0x3F80, np.uint16)  # ones, as bfloat16
STORED = {"__array_interface__": WORDS.__array_interface__}


@pytest.mark.parametrize(
    ("base", "view"),
    [
        (BASE, lambda base: base),
        (BASE, np.transpose),
        (BASE, lambda base: base[:, ::2]),
        (BASE, lambda base: base[::-1, 3:7]),
        (BASE, lambda base: base[:0]),
        (np.zeros(14, np.uint8), lambda base: base[1:]),  # one byte behind a word, and one more than words
        (np.zeros(7, np.complex64), lambda base: base),
        (np.zeros(()), lambda base: base),
    ],
)
def test_a_poison_fills_each_element_of_any_layout_in_c_order_and_nothing_between(placed, base, view):
    base = base.copy()
    array, others = view(base), base.copy()
    found = users_array(placed(array))
    found.poison(POISONS[0])
    expected = poison_bytes(POISONS[0], array.nbytes)
    assert np.array_equal(np.ascontiguousarray(array).reshape(-1).view(np.uint8), expected)
    assert np.array_equal(found.fetch().reshape(-1).view(np.uint8), expected)
    written = np.zeros(base.shape, bool)
    view(written)[...] = True
    assert np.array_equal(base[~written], others[~written])


def test_bits_tell_contents_apart_and_do_not_depend_on_the_layout(placed):
    array = np.arange(12.0).reshape(3, 4)
    one, strided = users_array(placed(array)), users_array(placed(array.T))
    assert one.bits() == users_array(placed(array.copy())).bits()
    assert strided.bits() != one.bits()
    array[2, 3] = -1
    assert (
        users_array(placed(array.copy())).bits() != users_array(placed(np.arange(12.0).reshape(3, 4))).bits()
    )


def test_arrays_overlap_where_they_have_an_element_in_common(placed):
    base = np.zeros((6, 6))
    whole, left, right = (users_array(placed(each)) for each in (base, base[:, :3], base[:, 3:]))
    other = users_array(placed(np.zeros(6)))
    assert whole.overlaps(left)
    assert left.overlaps(whole)
    assert left.span.overlaps(right.span)
    assert not left.overlaps(right)
    assert not whole.overlaps(other)


@pytest.mark.parametrize(
    "value", [1.0, np.float32(1), "text", None, [1.0], np.array([None]), np.zeros(2, "O,f4"), object()]
)
def test_what_has_no_memory_of_its_own_or_holds_objects_is_no_array(value):
    assert users_array(value) is None


@pytest.mark.parametrize("placed", ["host", "device"], indirect=True)
@pytest.mark.parametrize("dtype", ["u8,u8,f4,?", "U3", "M8[s]"])
def test_records_and_texts_are_hashed_by_their_bytes_and_hold_no_numbers(placed, dtype):
    array = np.zeros(5, dtype)
    found = users_array(placed(array))
    assert not found.holds_numbers
    before = found.bits()
    array.view("u1")[-1] ^= 1
    assert found.bits() != before
    assert found.overlaps(users_array(placed(array[2:])))


class Tensor:
    """A tensor as PyTorch's on the host: one that is marked tells no address until the mark is off."""

    is_cuda = False

    def __init__(self, array, marks=()):
        self.array, self.marks, self.dtype = array, frozenset(marks), f"torch.{array.dtype}"

    def detach(self):
        return self

    def is_conj(self):
        return "conjugated" in self.marks

    def is_neg(self):
        return "negated" in self.marks

    def conj(self):
        return Tensor(self.array, self.marks ^ {"conjugated"})

    def _neg_view(self):
        return Tensor(self.array, self.marks ^ {"negated"})

    def numpy(self):
        if self.marks:
            raise RuntimeError("resolve it first")
        return self.array


@pytest.mark.parametrize("marks", [(), ("conjugated",), ("negated",), ("conjugated", "negated")])
def test_a_lazily_conjugated_tensor_lies_where_its_elements_are_and_is_compared_as_it_is_read(marks):
    array = np.array([1 + 2j, 3 - 4j])
    plain, marked = users_array(Tensor(array)), users_array(Tensor(array, marks))
    assert marked.overlaps(plain)
    assert marked.bits() == plain.bits()
    assert (marked == plain) is not bool(marks)
    read = array.conj() if "conjugated" in marks else array
    assert np.array_equal(marked.values(marked.fetch()), -read if "negated" in marks else read)


@pytest.mark.parametrize("marks", [("conjugated",), ("negated",)])
def test_a_returned_tensor_that_a_flag_conjugates_or_negates_is_not_computed(marks):
    tensor = type("Tensor", (Tensor,), {"__module__": "torch"})
    assert "return its resolve_conj().resolve_neg()" in why_untrusted(tensor(BASE, marks))
    assert why_untrusted(tensor(BASE)) is None


def computes(self, *_, **__):
    raise AssertionError("it computes")


def of_class(module="test_it", **members):
    return type("Array", (), {"__module__": module, **members})()


class OfItsMemory:
    """What tells where its elements lie, though its methods compute."""

    __array__ = get = computes

    def __init__(self):
        self.array = np.ones(3)
        self.__array_interface__ = self.array.__array_interface__


@pytest.mark.parametrize(
    "members",
    [
        {"__array__": computes},
        {"__array__": computes, "__array_interface__": property(computes)},
        {"__array_interface__": property(computes)},
        {"__array_struct__": property(computes)},
        {"__buffer__": computes},
        {"__array__": computes, "__array_interface__": functools.cached_property(computes)},
        {"get": computes, "shape": (3,)},
        {"detach": computes, "shape": (3,)},
        {"copy_to_host": computes, "shape": (3,)},
    ],
)
def test_an_array_of_an_unknown_class_is_no_result_since_it_may_compute_when_it_is_converted(members):
    lazy = of_class(**members)
    assert "is of an unknown class and may compute" in why_untrusted(lazy)
    for actual in (lazy, [lazy, lazy], (1.0, [lazy])):
        with pytest.raises(TypeError, match=r"Array, which is of an unknown class and may compute"):
            refuse_what_proves_nothing(actual, BASE)


@pytest.mark.parametrize(
    "value",
    [
        OfItsMemory(),
        of_class("jaxlib._jax", __array__=lambda self, *_, **__: np.ones(3), __dlpack__=computes),
        of_class("pandas.core.series", __array__=lambda self, *_, **__: np.ones(3), get=computes, items=()),
        (ctypes.c_float * 3)(1, 1, 1),
        memoryview(b"\1\1\1"),
        [np.float32(1), 1, 1.0],
        # JAX's deleted arrays raise; Warp's dtypes are classes, and its bfloat16 looks like an integer
        type("Deleted", (OfItsMemory,), {"__cuda_array_interface__": property(computes)})(),
        of_class("warp", dtype=type("bfloat16", (), {}), __array__=computes, **STORED),
    ],
)
def test_arrays_that_hold_their_values_are_read_without_a_method_that_may_compute(value):
    assert why_untrusted(value) is None
    refuse_what_proves_nothing(value, BASE)
    assert to_host(value).tolist() == [1, 1, 1]


def test_what_may_compute_when_it_is_read_is_told():
    """A class of xarray's has a graph only if what it holds has one, and computes into its own class."""
    assert "computes when it is read" in why_untrusted(of_class(__dask_graph__=lambda _: {}))
    eager = of_class(__dask_graph__=lambda _: None, __array__=computes)
    assert "return a plain array" in why_untrusted(eager)
    assert "subclass of an array" in why_untrusted(np.zeros(3).view(type("Hiding", (np.ndarray,), {})))
    nested = type("Nested", (OfItsMemory,), {"shape": property(computes)})  # as PyTorch's nested tensors
    assert [why_untrusted(value) for value in (np.zeros(3), np.float64(3), None, nested())] == [None] * 4


def generator():
    yield 1


async def coroutine():
    pass


async def async_generator():
    yield 1


def of_a_loop():
    with closing(asyncio.new_event_loop()) as loop:
        return loop.create_future()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (coroutine, "the coroutine of coroutine, which has not run: *lambda: asyncio.run(f(x))"),
        (functools.partial(coroutine), "the coroutine of coroutine, which has not run: *"),
        (generator, "the generator of generator, which has not run: *lambda: list(f(x))"),
        (lambda: (x for x in "ab"), "the generator of *<genexpr>, which has not run: *"),
        (async_generator, "the async generator of async_generator, which has not run: *"),
        (lambda: map(abs, [1]), "map, which computes each item when it is taken: return list(…) of it"),
        (lambda: itertools.chain([1], [2]), "itertools.chain, which *"),
        (Future, "concurrent.futures._base.Future, for which the call does not wait: return its result"),
        (of_a_loop, "_asyncio.Future, for which *"),
    ],
)
def test_work_that_a_call_leaves_undone_is_told_with_the_remedy(call, told):
    found = why_untrusted(call())
    assert fnmatch.fnmatchcase(found, told), found


def test_values_that_compute_nothing_late_are_trusted(tmp_path):
    waited_for: Future[int] = Future()
    waited_for.set_result(1)
    with (tmp_path / "file").open("w") as file:
        values = [
            waited_for,
            list(generator()),
            {}.items(),
            iter([1]),
            range(3),
            np.ones(3).flat,
            of_class(__iter__=lambda self: self, __next__=computes),
            file,
            {1: 2},
            of_class(get=computes),  # a mapping, a queue
        ]
        assert [why_untrusted(value) for value in values] == [None] * len(values)


def test_tensors_of_pytorch_on_the_host_are_arrays_too():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(5, dtype=torch.bfloat16, requires_grad=True)
    found = users_array(tensor)
    assert np.array_equal(found.values(found.fetch()), np.ones(5, np.float32))
    found.poison(POISONS[1])
    assert bool(torch.isnan(tensor).all())
    assert why_untrusted(torch.nn.Parameter(torch.ones(3))) is None


@pytest.mark.parametrize("place", [(1, 0), CUDA])
@pytest.mark.parametrize(
    ("stored", "told", "read_as"),
    [
        (WORDS[0], {"form": (4, 16, 1, 0)}, "bfloat16"),
        (WORDS[0], {"dtype": "bfloat16"}, "bfloat16"),  # exported as integers
        (np.uint8(0x3C), {"form": (12, 8, 1, 0), "dtype": "float8_e5m2"}, "float8_e5m2"),
        (np.float16(1), {"dtype": "bfloat16"}, None),  # what is exported counts
        (np.int32(1), {"dtype": "bfloat16"}, None),
    ],
)
def test_an_array_of_dlpack_is_compared_as_its_library_reads_it(device, place, stored, told, read_as):
    buffer = type("Buffer", (Exporter,), {"__module__": "cuda.core"})
    array = buffer(np.full((3, 2), stored).T, device=place, **told)
    found = users_array(array)
    assert (found.read_as, found.on_device) == ((read_as,) if read_as else (), place == CUDA)
    assert np.array_equal(to_host(array), np.ones((2, 3)))


@pytest.mark.parametrize("place", [(1, 0), CUDA])
def test_memory_of_dlpack_is_held_while_its_address_is_used(place):
    exporter = Exporter(np.zeros(3), device=place)
    found, memory = users_array(exporter), weakref.ref(exporter.array)
    exporter.array = None
    assert memory() is not None
    del found
    assert memory() is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"form": (12, 8, 4, 0), "dtype": "float8_e5m2x4"}, "cannot hand over .NotImplementedError: vector"),
        ({"device": ROCM}, "BufferError: device not supported.: copy it to an array"),
        (None, "to read that, pip install 'cuda-core.cu13.'"),
        ("refuses", "cannot hand over .BufferError: not strided"),  # which no package mends
    ],
)
def test_what_dlpack_cannot_hand_over_is_told_with_the_remedy(monkeypatch, told, why):
    if not isinstance(told, dict):
        monkeypatch.setitem(sys.modules, "cuda.core.utils", None)
    if told == "refuses":
        refuse = Mock(side_effect=BufferError("not strided"))
        monkeypatch.setattr(Exporter, "__dlpack__", refuse)
    array = Exporter(np.ones(3, np.float32), **told if isinstance(told, dict) else {})
    assert users_array(array) is None
    with pytest.raises(TypeError, match=f"Exporter, which .*{why}"):
        to_host(array)


def nowhere(*shape):
    """Is a tensor that a compiler of PyTorch traces with: it has no memory."""
    interface = {"shape": shape, "typestr": "<f4", "data": (0, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=interface)


def test_an_array_of_no_elements_may_lie_nowhere():
    assert users_array(nowhere(0)).nbytes == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: nowhere(3),
        lambda: Mock(spec=np.ndarray),
        lambda: MagicMock(spec=np.ndarray),
        lambda: np.array(["a"], np.dtypes.StringDType()),
        lambda: of_class(__array_interface__={}),
        lambda: of_class(__getattr__=computes),  # a proxy outside of its context
        lambda: of_class(__array_interface__={**STORED["__array_interface__"], "data": b"abc"}),  # as PIL's
    ],
)
def test_what_does_not_keep_to_a_protocol_is_no_array(make):
    assert users_array(make()) is None


@dataclasses.dataclass
class Node:
    array: object
    near: list = dataclasses.field(default_factory=list)


def test_arguments_that_hold_each_other_are_looked_into_once_in_their_order():
    mesh = [Node(n) for n in range(2000)]
    for node, following in itertools.pairwise(mesh):
        node.near += [following, node]
        following.near.append(node)
    found = [*leaves("x", {"mesh": mesh[0], "a": (7, mesh)})]
    assert [leaf.value for leaf in found] == [*range(2000), 7]
    assert [leaf.place for leaf in found[:2]] == ["x['mesh'].array", "x['mesh'].near[0].array"]


def test_what_is_handed_over_twice_is_found_twice_since_it_is_aliased():
    twice = [0]
    assert [leaf.place for leaf in leaves("x", [twice, twice])] == ["x[0][0]", "x[1][0]"]


def left(found, other, *, poisons=POISONS):
    return still_poisoned(found, poisons[1], other, poisons[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128", "int8", "int32", "bool"])
def test_elements_that_two_calls_left_poisoned_are_counted_with_the_first(dtype):
    calls = [np.ones(9, dtype), np.ones(9, dtype)]
    for array, poison in zip(calls, POISONS, strict=True):
        raw = array.view(np.uint8)
        width = array.itemsize
        raw[4 * width : 6 * width] = poison_bytes(poison, raw.size)[4 * width : 6 * width]
    assert left(calls[1], calls[0]) == (2, 4)
    assert left(calls[0], calls[0]) == (0, -1)


def test_what_only_the_first_call_wrote_is_left_and_a_computed_number_that_equals_a_poison_is_not():
    second = poison_bytes(POISONS[1], 16).view(np.float32)
    assert left(second, np.ones(4, np.float32)) == (4, 0)
    equal = poison_bytes(POISONS[1], 8)
    assert left(equal.view(np.int32), equal.copy().view(np.int32)) == (0, -1)
    assert left(equal.view(np.int8), np.arange(8, dtype=np.int8)) == (0, -1), "one in 256 by chance"
    assert left(equal, equal.copy(), poisons=(POISONS[1], POISONS[1])) == (0, -1)
