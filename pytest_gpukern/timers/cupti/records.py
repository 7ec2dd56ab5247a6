"""Reads CUPTI's records from its buffers, at a tenth of what cupti-python's objects of them cost.

cupti-python makes an object of every record, which takes 12 µs on the host of an H200, and reading a field of
it takes more: recording a call took three times as long as executing it. But it also exports the layout of
the records, as NumPy dtypes, and CUPTI's C functions. With these two the records that matter are copied out
of a buffer as they are, and only the fields that matter become Python's.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

_BUFFER_BYTES = 1 << 20
_SIGNATURES = {
    "cuptiActivityRegisterCallbacks": (
        b"CUptiResult (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc)"
    ),
    "cuptiActivityGetNextRecord": b"CUptiResult (uint8_t *, size_t, CUpti_Activity **)",
}
_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_Register = ctypes.CFUNCTYPE(ctypes.c_int, _Requested, _Completed)
_Next = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))

_TIMES = ("kind", "start", "end", "stream_id", "correlation_id")
_KERNEL = (
    *_TIMES,
    *("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread"),
    *("static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread"),
)
_READ = {
    "KERNEL": ("kernel", _KERNEL),
    "CONCURRENT_KERNEL": ("kernel", _KERNEL),
    "MEMCPY": ("memcpy", (*_TIMES, "copy_kind", "src_kind", "dst_kind", "bytes")),
    "MEMSET": ("memset", (*_TIMES, "bytes")),
    "EXTERNAL_CORRELATION": (
        "external_correlation",
        ("kind", "external_kind", "external_id", "correlation_id"),
    ),
    "FUNCTION": ("function", ("kind", "module_id", "name")),
}
"""Kind of record → its layout's name in cupti-python without version, and the fields that are read."""


class LayoutUnknownError(Exception):
    """The records cannot be read here; the message says why."""


@dataclass(frozen=True)
class _Layout:
    dtype: np.dtype[Any]
    fields: tuple[str, ...]
    record: Any


class RecordBuffers:
    """Gives CUPTI buffers, and their records, once they are full or flushed, to a callback.

    Records of kinds that are not read are left out. The others are named tuples with the fields of
    cupti-python's objects.

    Args:
        cupti: the module of cupti-python.
        completed: takes the records of a buffer; runs on a thread of CUPTI's.
        failed: takes an error in reading them; there too.

    Raises:
        LayoutUnknownError: cupti-python does not export what is needed.
    """

    def __init__(
        self,
        cupti: Any,
        completed: Callable[[Sequence[Any]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._layouts = _layouts(cupti)
        self._register, self._next = _functions()
        self._hand_over = completed
        self._fail = failed
        self._buffers: dict[int, Any] = {}
        # CUPTI keeps pointers to these.
        self._callbacks = (_Requested(self._requested), _Completed(self._completed))

    def register(self) -> bool:
        """Has CUPTI use these buffers from now on; whether it does."""
        try:
            return int(self._register(*self._callbacks)) == 0
        except SystemError:  # cupti-python's function has raised: there is no CUPTI that it could load
            return False

    def _requested(self, buffer: Any, size: Any, most_records: Any) -> None:
        buffer[0], size[0], most_records[0] = None, 0, 0
        try:
            import numpy as np

            memory = np.empty(_BUFFER_BYTES // 8, np.uint64)  # aligned to 8 bytes, as CUPTI asks for
        except Exception as error:  # noqa: BLE001 - as below; without a buffer CUPTI drops the records
            self._fail(error)
            return
        address = int(memory.ctypes.data)
        self._buffers[address] = memory
        buffer[0], size[0] = address, memory.nbytes

    def _completed(self, _context: Any, _stream: int, address: int, _size: int, valid: int) -> None:
        try:
            if valid:
                self._hand_over(self._read(address, valid))
        except Exception as error:  # noqa: BLE001 - it must not get through to a thread of CUPTI's
            self._fail(error)
        finally:
            self._buffers.pop(address, None)

    def _read(self, address: int, valid: int) -> list[Any]:
        """The records of a buffer, kind by kind.

        Raises:
            LayoutUnknownError: a record is longer or shorter than its layout.
        """
        found, places = ctypes.c_void_p(), []
        while not self._next(address, valid, ctypes.byref(found)):
            places.append(found.value or 0)
        by_kind: dict[int, list[int]] = {}
        for place, end in itertools.pairwise([*places, address + valid]):
            kind = ctypes.c_int32.from_address(place).value
            if kind not in self._layouts:
                continue
            if end - place != self._layouts[kind].dtype.itemsize:
                raise LayoutUnknownError("CUPTI's records are not as long as cupti-python declares")
            by_kind.setdefault(kind, []).append(place)
        return [
            record for kind, found_at in by_kind.items() for record in _copied(found_at, self._layouts[kind])
        ]


def _copied(places: Sequence[int], layout: _Layout) -> list[Any]:
    import numpy as np

    size = layout.dtype.itemsize
    data = b"".join([ctypes.string_at(place, size) for place in places])
    values = np.frombuffer(data, layout.dtype)[list(layout.fields)].tolist()
    if "name" not in layout.fields:
        return [layout.record._make(each) for each in values]
    at, names = layout.fields.index("name"), dict[int, str]()
    records = []
    for each in values:
        pointer = each[at]
        if pointer not in names:
            names[pointer] = ctypes.string_at(pointer).decode(errors="replace") if pointer else ""
        records.append(layout.record._make((*each[:at], names[pointer], *each[at + 1 :])))
    return records


def _layouts(cupti: Any) -> dict[int, _Layout]:
    """Kind → layout, of the newest version that cupti-python has, which is the one that it reads itself."""
    layouts = {}
    for kind, (name, fields) in _READ.items():
        versions = {
            int(match[1] or 0): attribute
            for attribute in dir(cupti)
            if (match := re.fullmatch(rf"activity_{name}(\d*)_dtype", attribute))
        }
        if not versions:
            raise LayoutUnknownError(f"cupti-python has no layout of {name} records")
        dtype = getattr(cupti, versions[max(versions)])
        missing = [field for field in fields if field not in (dtype.names or ())]
        if missing:
            raise LayoutUnknownError(f"cupti-python's layout of {name} records has no field {missing[0]!r}")
        record = collections.namedtuple(f"_{name}", fields)  # type: ignore[misc]
        layouts[int(getattr(cupti.ActivityKind, kind))] = _Layout(dtype, fields, record)
    return layouts


def _functions() -> tuple[Any, Any]:
    """CUPTI's functions to register callbacks and to go from record to record, of cupti-python's library."""
    try:
        from cupti import cycupti

        exported = cycupti.__pyx_capi__
    except (ImportError, AttributeError) as error:
        raise LayoutUnknownError(f"cupti-python does not export CUPTI's functions: {error}") from error
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = []
    for (name, signature), prototype in zip(_SIGNATURES.items(), (_Register, _Next), strict=True):
        try:
            found.append(prototype(pointer(exported[name], signature)))
        except (KeyError, ValueError) as error:
            raise LayoutUnknownError(
                f"cupti-python exports no {name} of the signature that is known"
            ) from error
    return found[0], found[1]
