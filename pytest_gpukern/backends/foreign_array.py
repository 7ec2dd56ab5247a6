"""Reads, hashes and poisons arrays that a user made with any library."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import inspect
import itertools
import math
import numbers
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pytest_gpukern.arrays.compare import POISON, dtype_missing, float_bits, is_narrow, poison_bytes
from pytest_gpukern.arrays.memory import Span, Strides, out_of_c_order, span_of
from pytest_gpukern.arrays.threaded import map_in_threads
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.values.backend_table import BACKENDS, cuda_packages

_TRIES = 10**6  # units of NumPy's work: an exact answer about strided arrays may take exponential time
_PIECE = 1 << 24  # bytes; recorded hashes depend on it, so their method is called crc32-16mib


@dataclass(frozen=True)
class UsersArray:
    """Describes where an array lies; the device must be idle while its memory is read or written.

    Two are equal if they are the same elements at the same addresses, read alike.

    Attributes:
        pointer: address of the first element.
        dtype: dtype of the stored elements; for one that NumPy lacks, an integer of the same size.
        strides: strides in bytes; None for C order without gaps.
        host: a NumPy array on the same memory, if it lies on the host.
        read_as: how its library reads the elements: `conjugated`, `negated`, or as a dtype that NumPy lacks,
            such as `bfloat16`; mostly empty.
        owner: what keeps the memory while we use its address, if DLPack told that; else None, and the caller
            holds the array.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: Strides | None
    on_device: bool
    read_only: bool = field(compare=False)
    host: np.ndarray[Any, Any] | None = field(default=None, compare=False)
    read_as: tuple[str, ...] = ()
    owner: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of_interface(cls, interface: Mapping[str, Any], *, on_device: bool, **others: Any) -> UsersArray:
        """Returns where an array lies by NumPy's array interface or CUDA's, which have the same fields."""
        dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
        pointer, read_only = interface["data"]
        strides = out_of_c_order(shape, interface.get("strides"), dtype.itemsize)
        return cls(int(pointer), shape, dtype, strides, on_device, bool(read_only), **others)

    @classmethod
    def of_host(cls, array: np.ndarray[Any, Any]) -> UsersArray:
        """Returns where an array of NumPy lies, whose dtype stays as it is."""
        strides = out_of_c_order(array.shape, array.strides, array.itemsize)
        return cls(array.ctypes.data, array.shape, array.dtype, strides, False, False, array)

    @property
    def holds_numbers(self) -> bool:
        """Whether its elements can be compared and poisoned: not records, texts or float8."""
        return self.dtype.kind in "biufc" and set(self.read_as) <= {"bfloat16", "conjugated", "negated"}

    @property
    def read_dtype(self) -> Any:
        """Its dtype as its library reads it; the name of one that NumPy lacks."""
        return next(filter(is_narrow, self.read_as), self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @functools.cached_property  # each of many arguments is compared with each other
    def span(self) -> Span:
        return span_of(self.pointer, self.shape, self.strides, self.dtype.itemsize)

    def overlaps(self, other: UsersArray) -> bool:
        """Returns whether the arrays share an element, or may share one if it takes too long to tell."""
        if not self.span.overlaps(other.span):  # host and device have one space of addresses
            return False
        if self.strides is None and other.strides is None:
            return True
        start = min(self.span.start, other.span.start)
        room = np.empty(max(self.span.stop, other.span.stop) - start, np.uint8)  # never touched
        one, two = (
            np.ndarray(array.shape, array.dtype, room, array.pointer - start, array.strides)
            for array in (self, other)
        )
        try:
            return bool(np.shares_memory(one, two, max_work=_TRIES))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True

    def fetch(self, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Returns a copy of its contents on the host, in C order."""
        if self.host is None and self.strides is None:
            copy = np.empty(self.shape, self.dtype) if into is None else into
            _copy_from_device(copy, self.pointer)
            return copy
        elements = self._strided()[1] if self.host is None else self.host
        if into is None:
            return np.array(elements, order="C")
        into[...] = elements
        return into

    def bits(self) -> str | None:
        """Returns a hash of its bytes in C order, taken where it lies; None if they are not all values."""
        if self.on_device and self.strides is None and self.pointer % 4 == 0:
            return f"splitmix64:{cuda.runtime().hash_at(self.pointer, self.nbytes):016x}"
        return bits_of(self.host if self.host is not None else self.fetch())

    def poison(self, word: int) -> None:
        """Fills the elements, and nothing between them, so that their bytes in C order repeat `word`."""
        if not self.nbytes:
            return
        if self.host is not None:
            poison(self.host, word)
        elif self.queue_poison(word):
            cuda.runtime().synchronize()
        else:
            self.put(np.ndarray(self.shape, self.dtype, poison_bytes(word, self.nbytes)))

    def queue_poison(self, word: int) -> bool:
        """Queues the fill on the default stream; returns whether it could, as only on a device in C order."""
        queues = self.host is None and self.strides is None and self.pointer % 4 == 0
        if queues:
            cuda.runtime()  # the context
            cuda.fill_memory(self.pointer, self.nbytes, word)
        return queues

    def put(self, contents: np.ndarray[Any, Any]) -> None:
        """Writes contents of its shape and dtype; bytes between its elements stay as they are."""
        if self.host is not None:
            copy_into(self.host, contents)
        elif self.strides is None:
            _copy_to_device(self.pointer, np.ascontiguousarray(contents))
        else:
            raw, elements = self._strided()
            elements[...] = contents
            _copy_to_device(self.span.start, raw)

    def queueing(self, contents: np.ndarray[Any, Any]) -> Callable[[], Any]:
        """Returns a function that writes contents; on a device it only queues that on the default stream.

        The caller must hold the contents until then. Device memory must be in C order.
        """
        if self.host is not None:
            return functools.partial(self.put, contents)
        copy = cuda.runtime().copy_of(contents)
        return functools.partial(cuda.checked, "cuMemcpyDtoD", self.pointer, copy.pointer, self.nbytes)

    def values(self, fetched: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns fetched contents as numbers to compare, with bfloat16 and float8 as float32.

        Raises:
            TypeError: they are float8, which needs ml_dtypes.
        """
        values, narrow = fetched, self.read_dtype
        if narrow == "bfloat16":
            values = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif is_narrow(narrow):
            if (missing := dtype_missing(narrow)) is not None:
                raise TypeError(missing)
            values = values.view(narrow).astype(np.float32)
        if "conjugated" in self.read_as:
            values = values.conj()
        return -values if "negated" in self.read_as else values

    def _strided(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns a copy of all bytes of its span, and its elements in them."""
        raw = np.empty(self.span.stop - self.span.start, np.uint8)
        _copy_from_device(raw, self.span.start)
        return raw, np.ndarray(self.shape, self.dtype, raw, self.pointer - self.span.start, self.strides)


def poison(array: np.ndarray[Any, Any], word: int = POISON) -> None:
    """Fills an array with a poison, as if it lay in C order."""
    if not array.flags.c_contiguous:
        filled = np.empty(array.shape, array.dtype)
        poison(filled, word)
        array.view(f"V{array.itemsize}")[...] = filled.view(f"V{array.itemsize}")
        return
    raw = array.reshape(-1).view(np.uint8)
    whole = raw.size // 4 * 4
    _in_pieces(lambda part: part.fill(word), raw[:whole].view(np.uint32))
    raw[whole:] = poison_bytes(word, raw.size - whole)


def copy_into(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copies contents, in threads where both are contiguous."""
    if not (target.flags.c_contiguous and source.flags.c_contiguous and target.dtype == source.dtype):
        target[...] = source
        return
    _in_pieces(np.copyto, target.reshape(-1), source.reshape(-1))


def bits_of(array: np.ndarray[Any, Any]) -> str | None:
    """Returns a hash of an array's bytes in C order, in pieces of 16 MiB; it is the same in every process.

    Returns None for long doubles, whose bytes are not all values.
    """
    if array.dtype.char in "gG" or array.dtype.hasobject:
        return None
    together = hashlib.sha256(b"".join(crc.to_bytes(4, "little") for crc in checksums(array)))
    return f"crc32-16mib:{together.hexdigest()[:16]}"


def checksums(array: np.ndarray[Any, Any]) -> list[int]:
    """Returns the CRC-32 of each piece of an array, as if it lay in C order."""
    return _in_pieces(zlib.crc32, np.ascontiguousarray(array).reshape(-1).view("u1"))


def _in_pieces(function: Callable[..., Any], *flat: np.ndarray[Any, Any]) -> list[Any]:
    """Applies `function` to the pieces of vectors of one form; a single thread touches only a few GB/s."""
    step = max(1, _PIECE // max(1, flat[0].itemsize))
    return map_in_threads(
        lambda start: function(*(vector[start : start + step] for vector in flat)),
        range(0, flat[0].size, step),
    )


def is_number(value: Any) -> bool:
    """Returns whether a value is a single number of Python's or NumPy's, and no array."""
    return isinstance(value, (numbers.Number, np.generic))


def users_array(value: Any) -> UsersArray | None:
    """Returns where an array lies, by CUDA's array interface, else NumPy's, else DLPack.

    Returns None for anything else, such as a NumPy scalar, for arrays of Python objects, and for what does
    not keep to the protocols: a mock, a proxy, PIL's images, which hand over bytes.
    """
    try:
        return _found(value)
    except Exception:  # noqa: BLE001 - of whatever library
        return None


def _found(value: Any) -> UsersArray | None:
    if isinstance(value, (np.generic, type)) or hasattr(value, "__dask_graph__"):
        return None
    read_as: tuple[str, ...] = ()
    if hasattr(value, "detach") and hasattr(value, "is_cuda"):
        value, read_as = _plain_tensor(value)
    elif type(value).__name__ == "FakeCUDAArray":  # the simulator's
        value = value._ary
    owner, interface = None, _told(value, "__cuda_array_interface__")
    on_device = interface is not None
    if interface is None:
        interface = _told(value, "__array_interface__")
    if interface is None and hasattr(type(value), "__dlpack__"):
        with suppress(Exception):  # which `why_no_address` tells
            owner, on_device = _exported(value)
            value, interface = owner, owner.__array_interface__
    if interface is None or interface["data"] is None:
        return None
    host = None if on_device else np.asarray(value)
    kind, size = interface["typestr"][1], interface["typestr"][2:]
    narrow = narrow_dtype(value) if kind in "iuV" or size == "1" else None
    if narrow is not None and int(size) == max(1, float_bits(narrow) // 8):
        raw, read_as = f"<i{size}", (narrow,)  # it was "<u2" (Warp), "<V2" or "<f1" (ml_dtypes)
        interface, host = {**interface, "typestr": raw}, None if host is None else host.view(raw)
    array = UsersArray.of_interface(interface, on_device=on_device, host=host, read_as=read_as, owner=owner)
    nowhere = array.pointer == 0 and array.nbytes > 0  # PyTorch's fake tensors, which compilers keep
    holds_objects = array.dtype.hasobject or (host is not None and host.dtype.hasobject)
    return None if nowhere or holds_objects else array


def input_array(value: Any) -> UsersArray | None:
    """Returns where an argument lies that a call may write; the result is held while it runs.

    A read-only one of DLPack's is left alone: while we hold it, JAX copies what the call is donated.
    """
    array = users_array(value)
    return None if array is not None and array.owner is not None and array.read_only else array


def _told(value: Any, protocol: str) -> Any:
    """Returns what an array tells; None if that raises, as of JAX's deleted and PyTorch's nested arrays."""
    try:
        return getattr(value, protocol, None)
    except Exception:  # noqa: BLE001 - of whatever library
        return None


def _exported(value: Any) -> tuple[Any, bool]:
    """Returns what holds an array by DLPack, with NumPy's interface, and whether it lies on a device."""
    from cuda.core.utils import StridedMemoryView

    shown = types.SimpleNamespace(__dlpack_device__=value.__dlpack_device__)
    # Without the stream: the device is idle, some exporters take none, and JAX hands -1 to the driver as one.
    shown.__dlpack__ = lambda stream=None, **others: value.__dlpack__(**others)  # noqa: ARG005
    view = StridedMemoryView.from_dlpack(shown, stream_ptr=-1)
    narrow = narrow_dtype(value)
    try:
        dtype = view.dtype
        narrow = narrow_dtype(view) or narrow
    except (NotImplementedError, TypeError):  # float8, and bfloat16 without ml_dtypes
        if narrow is None or "x" in narrow:  # float8_e4m3fnx4: a vector
            raise
        dtype = np.dtype(f"i{float_bits(narrow) // 8}")
    strides = view.strides and tuple(step * dtype.itemsize for step in view.strides)
    immutable = type(value).__module__.partition(".")[0] in {"jax", "jaxlib", "pyarrow", "tensorflow"}
    on_device = value.__dlpack_device__()[0] not in (1, 3)  # kDLCPU, kDLCUDAHost
    typestr = f"|V{dtype.itemsize}" if is_narrow(dtype) else dtype.str
    data = (view.ptr, view.readonly or immutable)  # JAX does not mark what it exports
    interface = {"shape": view.shape, "typestr": typestr, "data": data, "strides": strides, "version": 3}
    return types.SimpleNamespace(view=view, dtype=narrow, __array_interface__=interface), on_device


def why_no_address(value: Any) -> str | None:
    """Says why what seems an array does not tell where it lies, and what helps, or returns None."""
    if hasattr(type(value), "__dlpack__") and not isinstance(value, np.ndarray):
        try:
            try:
                _exported(value)
            except ImportError:
                value.__dlpack__()  # no package helps where this fails, as for PyTorch's sparse tensors
                return "which tells its address by DLPack alone; to read that, pip install 'cuda-core[cu13]'"
        except Exception as error:  # noqa: BLE001 - of whatever library
            why = f"{type(error).__name__}: {error}"
            return f"which DLPack cannot hand over ({why:.200}): copy it to an array of NumPy, CuPy and so on"
    elif hasattr(value, "data_ptr") and not may_be_array(value):
        remedy = "pass it, too, as in gpu_benchmark(lambda out, *views: kernel(*views), out, *views)"
        return f"which has no array interface and no DLPack: name the tensor it was made from; {remedy}"
    return None


def may_be_array(value: Any) -> bool:
    """Says by its class whether a value may be an array: a proxy may raise whatever it likes if asked."""
    names = ("__array_interface__", "__cuda_array_interface__", "__dlpack__", "is_cuda", "copy_to_host")
    return any(hasattr(type(value), name) for name in names)


def narrow_dtype(value: Any) -> str | None:
    """Names the dtype of an array that NumPy lacks (`is_narrow`), or returns None."""
    dtype = getattr(value, "dtype", "")
    name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")  # Warp's are classes
    return name if is_narrow(name) else None


def backend_of(kind: type) -> str | None:
    """Returns the backend that makes arrays of exactly this type, or None."""
    named = (kind.__module__, kind.__name__)
    return next((name for name, row in BACKENDS.items() if named in row.arrays), None)


def _plain_tensor(tensor: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns an object with the address of a PyTorch tensor, and how PyTorch reads what is stored there.

    A tensor itself gives no address if it requires a gradient, is lazily conjugated or negated, or has a
    dtype that NumPy lacks. Returns None for a tensor that is not strided memory.
    """
    read_as = []
    try:
        tensor = tensor.detach()
        if getattr(tensor, "is_conj", bool)():
            tensor = tensor.conj()  # the same memory without that mark
            read_as.append("conjugated")
        if getattr(tensor, "is_neg", bool)():
            tensor = tensor._neg_view()
            read_as.append("negated")
        dtype = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if dtype.startswith(("bfloat16", "float8")):
            tensor = tensor.view(getattr(sys.modules["torch"], "int16" if dtype == "bfloat16" else "uint8"))
            read_as.append(dtype)
        if not tensor.is_cuda:
            tensor = tensor.numpy()
        elif not tensor.__cuda_array_interface__:
            return None, ()
    except (AttributeError, KeyError, RuntimeError, TypeError):  # sparse and the like
        return None, ()
    return tensor, tuple(read_as)


class Argument(NamedTuple):
    """Holds one argument of a call; its place is its name, or `argument 2`, counted from 0, if unknown."""

    place: str
    value: Any


def leaves(place: str, value: Any) -> Iterator[Argument]:
    """Yields a value, or the items of a tuple, list, deque, dict or dataclass, each with its place.

    It looks once into one that holds others: they may hold it, as a tree whose nodes know their parents.
    """
    todo, seen = [Argument(place, value)], dict[int, Any]()
    while todo:
        one = todo.pop()
        if (items := _items(*one)) is None:
            yield one
        elif id(one.value) not in seen or all(_items(*item) is None for item in items):
            seen[id(one.value)] = one.value
            todo += reversed(items)


def _items(place: str, value: Any) -> list[Argument] | None:
    """Returns what a tuple, list, deque, dict or dataclass holds; None for anything else."""
    if isinstance(value, (tuple, list, deque)):
        return [Argument(f"{place}[{number}]", item) for number, item in enumerate(value)]
    if isinstance(value, dict):
        return [Argument(f"{place}[{key!r}]", item) for key, item in value.items()]
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or hasattr(value, "__array__"):
        return None
    if may_be_array(value):
        return None
    named = (each.name for each in dataclasses.fields(value))
    return [Argument(f"{place}.{name}", getattr(value, name, None)) for name in named]


_LAZY = (map, filter, zip, enumerate)
"""Builtin iterators that compute each item when it is taken; iterators of `itertools` do, too."""


def why_lazy(value: Any) -> str | None:
    """Says why a returned value stands for work that the call has not done, or None.

    Iterators in general pass: a file, a class with `__next__` and `array.flat` compute nothing late.
    """
    named = type_name(value)
    if _is_dask(value):
        return f"{named}, which computes when it is read, not in the call: return its compute()"
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        remedy = "time a function that consumes it, such as lambda: list(f(x))"
        return f"{_shown(value)}, which has not run: {remedy}"
    if inspect.iscoroutine(value):
        shown = _shown(value)
        value.close()  # else Python warns that nobody awaited it
        return f"{shown}, which has not run: time a function that runs it, such as lambda: asyncio.run(f(x))"
    is_future = hasattr(type(value), "add_done_callback")
    if not value.done() if is_future else inspect.isawaitable(value):
        return f"{named}, for which the call does not wait: return its result"
    if isinstance(value, _LAZY) or type(value).__module__ == "itertools":
        return f"{named}, which computes each item when it is taken: return list(…) of it"
    return None


def _is_dask(value: Any) -> bool:
    """Says whether a value has a graph of Dask's; xarray's have that of what they hold, or None."""
    graph = _told(value, "__dask_graph__")
    return callable(graph) and graph() is not None


def why_untrusted(value: Any) -> str | None:
    """Says why a returned value may compute when it is read, or None.

    It may if it is lazy, or of a class that somebody derived from a library's array.
    """
    if (lazy := why_lazy(value)) is not None:
        return lazy
    named = type_name(value)
    if _told(value, "detach") and any(getattr(value, flag, bool)() for flag in ("is_conj", "is_neg")):
        return f"{named} that a flag conjugates or negates: return its resolve_conj().resolve_neg()"
    if _is_derived(value) and not _holds_its_values(value):
        why = "a subclass of an array, which may compute when it is read"
        return f"{named}, {why}: return a plain array"
    converting = (*_CONVERTING, "get") if _told(value, "shape") is not None else _CONVERTING[:-2]
    return f"{named}, which {_UNKNOWN}: return a plain array" if _may_compute(value, converting) else None


_HOLD_VALUES = {"PIL", "cudf", "cupyx", "jax", "jaxlib", "ml_dtypes", "numpy", "paddle", "pandas", "polars"}
_HOLD_VALUES |= {"pyarrow", "scipy", "tensorflow", *sys.stdlib_module_names}
"""Packages, besides the backends', whose arrays hold their values when a call has returned them."""
_CONVERTING = ("__array__", "__array_interface__", "__array_struct__", "__buffer__", "copy_to_host", "detach")
_UNKNOWN = "is of an unknown class and may compute when it is read"
_STORED = (dict, types.GetSetDescriptorType, types.MemberDescriptorType)


def _holds_its_values(value: Any) -> bool:
    package = type(value).__module__.partition(".")[0]
    return package in _HOLD_VALUES or package in cuda_packages()


def _is_derived(value: Any) -> bool:
    return any(map(backend_of, type(value).__mro__[1:]))


def _may_compute(value: Any, converting: tuple[str, ...]) -> bool:
    """Returns whether a value of an unknown class has one of these methods, and does not tell its memory.

    On the host its interface must be stored, since a property of Python's may compute. Many libraries have
    one for device memory, where a call that launches nothing is INVALID. We trust DLPack.
    """
    if isinstance(value, (numbers.Number, ctypes.Array)) or _holds_its_values(value):
        return False
    tells = isinstance(inspect.getattr_static(value, "__array_interface__", None), _STORED)
    for name in ("__cuda_array_interface__", "__dlpack_device__"):
        tells |= inspect.getattr_static(value, name, None) is not None
    return (not tells or _is_derived(value)) and any(_offers(value, name) for name in converting)


def _offers(value: Any, name: str) -> bool:
    """Returns whether a value has an attribute; to ask for a property of NumPy's would compute it."""
    static = inspect.getattr_static(value, name, None)
    if name == "__buffer__":  # one in C tells its memory
        return inspect.isfunction(static)
    return static is not None or (not name.startswith("__") and _told(value, name) is not None)


def _copy_from_device(host: np.ndarray[Any, Any], pointer: int) -> None:
    cuda.runtime()  # the context
    if host.nbytes:
        cuda.checked("cuMemcpyDtoH", host.ctypes.data, pointer, host.nbytes)


def _copy_to_device(pointer: int, host: np.ndarray[Any, Any]) -> None:
    cuda.checked("cuMemcpyHtoD", pointer, host.ctypes.data, host.nbytes)
    cuda.runtime().synchronize()


def refuse_what_proves_nothing(actual: Any, expected: Any) -> None:
    """Refuses to compare a lazy output, one that may hide elements, or one with itself as its reference.

    Raises:
        TypeError: `actual` or an item of it is lazy or of an unknown class, or one is of NumPy's subclasses.
        ValueError: they share memory.
    """
    for role, value in (*leaves("actual", actual), *leaves("expected", expected)):
        if isinstance(value, np.ndarray) and type(value) is not np.memmap and backend_of(type(value)) is None:
            raise TypeError(
                f"{role} is {type_name(value)}, a subclass of numpy.ndarray, which may hide elements or "
                "compute them when it is read: pass a plain array, as from numpy.array(…) or filled()"
            )
        if role.startswith("expected"):
            continue
        if _is_dask(value):
            why = "computes when it is read, not when it was measured: call compute() of it"
        elif hasattr(value, "data_ptr") and not may_be_array(value):
            raise TypeError(f"{role} is {type_name(value)}, {why_no_address(value)}")
        elif _may_compute(value, (*_CONVERTING, "get", "__getitem__")):
            why = f"{_UNKNOWN}: make a plain array of it"
        else:
            continue
        raise TypeError(
            f"{role} is {type_name(value)}, which {why} inside the measured function, and verify the result"
        )
    same = isinstance(actual, (list, tuple, dict)) and actual is expected
    if same or any(itertools.starmap(UsersArray.overlaps, itertools.product(_held(actual), _held(expected)))):
        what = "are the same object" if actual is expected else "share memory"
        raise ValueError(
            f"actual and expected {what}, so the comparison would always pass: compute the reference in "
            "memory of its own"
        )


def _held(value: Any) -> list[UsersArray]:
    """Returns where an array lies, or where each array of a container lies."""
    return [array for _, leaf in leaves("", value) if may_be_array(leaf) if (array := users_array(leaf))]


def type_name(value: Any) -> str:
    """Names the type of a value with its module, since several libraries have an `ndarray`."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _shown(value: Any) -> str:
    return f"the {type(value).__name__.replace('_', ' ')} of {value.__qualname__}"


def how_to_verify(dtype: Any, name: str = "actual") -> str:
    """Says how to verify an array whose elements are no numbers."""
    if fields := getattr(dtype, "names", None):
        return f"verify its fields one by one, such as {name}[{fields[0]!r}]"
    return f"verify {name}.view('int64')" if getattr(dtype, "kind", "-") in "mM" else "verify numbers of it"


def to_host(value: Any) -> np.ndarray[Any, Any]:
    """Returns a NumPy array with the contents of `value`, which may live on the device.

    Args:
        value: a NumPy array or scalar, a Numba (real or simulated), CuPy, PyCUDA, PyTorch or Dask array, one
            that `users_array` finds, or a nested list of numbers. The device must be idle. A dtype that NumPy
            lacks becomes float32.

    Raises:
        TypeError: it holds no numbers.
    """
    if hasattr(value, "__dask_graph__"):
        value = value.compute(scheduler="synchronous")
    converts = any(hasattr(value, name) for name in ("__array__", "copy_to_host", "detach", "get"))
    reads_itself = converts and _holds_its_values(value)  # another's methods may compute
    lies = None if reads_itself else users_array(value)
    if lies is not None:
        value = lies.values(lies.fetch())
    elif hasattr(value, "copy_to_host") and not isinstance(value, np.ndarray):  # Numba; not if it is managed
        value = value.copy_to_host()
    elif hasattr(value, "detach"):  # PyTorch, wherever the tensor is
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = value.float() if narrow_dtype(value) else value
    elif hasattr(value, "get") and not hasattr(value, "items"):  # CuPy and PyCUDA, no mapping
        value = value.get()
    array = np.asarray(value)
    if narrow_dtype(array):
        array = array.astype(np.float32)
    if array.dtype.kind not in "biufc":
        wrong = f"{type(value).__name__} of dtype {array.dtype!s:.200}: verify compares numbers only"
        if lies is None and array.dtype.hasobject and (why := why_no_address(value)) is not None:
            raise TypeError(f"{type_name(value)}, {why}")
        raise TypeError(f"{wrong}: {how_to_verify(array.dtype)}")
    return array
