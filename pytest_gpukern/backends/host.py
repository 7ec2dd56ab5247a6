"""Runs variants on the host's processor, on NumPy arrays."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.arrays.memory import (
    BOUNDARY_BYTES,
    INPUT_GUARD,
    OUTPUT_GUARD,
    Damage,
    Placed,
    Placement,
    Span,
    out_of_c_order,
    span_of,
)
from pytest_gpukern.arrays.threaded import map_in_threads
from pytest_gpukern.backends.backend import Backend, Form
from pytest_gpukern.problems.problem import Output

_PIECE = 1 << 24


def is_array(value: Any) -> bool:
    """Returns whether an input is an array, and not a scalar."""
    return hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) > 0


def poison(array: np.ndarray[Any, Any], word: int = comparison.POISON) -> None:
    """Fills an array with a poison, as if it lay in C order."""
    if not array.flags.c_contiguous:
        filled = np.empty(array.shape, array.dtype)
        poison(filled, word)
        array.view(f"V{array.itemsize}")[...] = filled.view(f"V{array.itemsize}")
        return
    raw = array.reshape(-1).view(np.uint8)
    whole = raw.size // 4 * 4
    _in_pieces(lambda part: part.fill(word), raw[:whole].view(np.uint32))
    raw[whole:] = comparison.poison_bytes(word, raw.size - whole)


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
    together = hashlib.sha256(b"".join(crc.to_bytes(4, "little") for crc in _checksums(array)))
    return f"crc32-16mib:{together.hexdigest()[:16]}"


def _checksums(array: np.ndarray[Any, Any]) -> list[int]:
    """Returns the CRC-32 of each piece of an array, as if it lay in C order."""
    return _in_pieces(zlib.crc32, np.ascontiguousarray(array).reshape(-1).view("u1"))


def _in_pieces(function: Callable[..., Any], *flat: np.ndarray[Any, Any]) -> list[Any]:
    """Applies `function` to the pieces of vectors of one form; a single thread touches only a few GB/s."""
    step = max(1, _PIECE // max(1, flat[0].itemsize))
    return map_in_threads(
        lambda start: function(*(vector[start : start + step] for vector in flat)),
        range(0, flat[0].size, step),
    )


class GuardedArray:
    """Holds an array between guard zones of one buffer, in a special layout if `placement` says so."""

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, guard: int, placement: Placement | None = None
    ) -> None:
        self._placed = Placed(tuple(shape), np.dtype(dtype), placement or Placement(), guard)
        buffer = np.empty(self._placed.nbytes + BOUNDARY_BYTES, np.uint8)
        self._bytes = buffer[-buffer.ctypes.data % BOUNDARY_BYTES :][: self._placed.nbytes]
        for start, pattern in self._placed.zones():
            self._bytes[start : start + pattern.size] = pattern
        self.array = self._placed.view(self._bytes)

    def damage(self, name: str) -> list[Damage]:
        """Returns what was written into its guard zones; `name` is the array's in the result."""
        return self._placed.damage(name, lambda start, stop: self._bytes[start:stop])


class HostWorkspace:
    """Holds the NumPy arrays of one case; the inputs are private copies."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
        poisons: tuple[int, ...] = comparison.POISONS,
    ) -> None:
        placed = placed or {}
        self.array_type = type(self._given(np.empty(0)))
        forms = {name: value for name, value in inputs.items() if is_array(value) and name not in outputs}
        self._inputs, self._outputs = list(forms), list(outputs)
        guards = dict.fromkeys(outputs, OUTPUT_GUARD)
        self._guarded = {
            name: GuardedArray(form.shape, form.dtype, guards.get(name, INPUT_GUARD), placed.get(name))
            for name, form in {**forms, **outputs}.items()
        }
        arrays = {name: guarded.array for name, guarded in self._guarded.items()}
        self._host: dict[str, Any] = {**inputs, **arrays}
        self.load(inputs)
        self._poisons = itertools.cycle(poisons)
        self._bound: dict[str, Any] = {name: arrays[name] for name in outputs}
        self.arrays: dict[str, Any] = {
            **self._host,
            **{name: self._given(array) for name, array in arrays.items()},
        }
        self.poison()

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns an array as the variant gets it."""
        return array

    def _taken(self, value: Any) -> Any:
        """Returns a returned array of the right type as NumPy has it, or None to refuse it."""
        return value

    def load(self, inputs: Mapping[str, Any]) -> None:
        self._before = {name: inputs[name] for name in self._outputs if name in inputs}
        for name in (*self._inputs, *self._before):
            copy_into(self._host[name], inputs[name])

    fill = load

    def poison(self) -> None:
        self._poison = next(self._poisons)
        self._fill_outputs()

    def queue_poison(self, stream: Any) -> None:  # noqa: ARG002 - the host has no streams
        self._fill_outputs()

    def _fill_outputs(self) -> None:
        for name in self._outputs:
            if name in self._before:
                copy_into(self._host[name], self._before[name])
            else:
                poison(self._host[name], self._poison)

    def adopt(self, output: str, value: Any) -> Form | None:
        # A subclass may compute when it is compared.
        array = self._taken(value) if type(value) is self.array_type else None
        if array is None:
            return None
        self._bound[output] = array
        strides = out_of_c_order(array.shape, array.strides, array.itemsize)
        return Form(array.shape, array.dtype, strides, _span(array))

    def input_spans(self) -> dict[str, Span]:
        return {name: _span(self._host[name]) for name in self._inputs}

    def compare(
        self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance
    ) -> comparison.Comparison:
        return comparison.compare(self._bound[output], expected, tolerance, poison=self._poison or None)

    def fetch(self, output: str, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        if into is None:
            return np.array(self._bound[output])
        into[...] = self._bound[output]
        return into

    def digest(self) -> dict[str, int]:
        return self.digest_of(self._host)

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        return {name: hash(tuple(_checksums(inputs[name]))) for name in self._inputs}

    def damage(self) -> list[Damage]:
        return [damage for name, guarded in self._guarded.items() for damage in guarded.damage(name)]

    def bits(self, output: str) -> str | None:
        return bits_of(self._bound[output])

    def written_late(self, launch: Callable[[], None], *, hold_ns: float) -> list[str]:  # noqa: ARG002
        return []

    def close(self) -> None:
        self.arrays.clear()
        self._host.clear()
        self._guarded.clear()
        self._bound.clear()


def _span(array: np.ndarray[Any, Any]) -> Span:
    return span_of(array.ctypes.data, array.shape, array.strides, array.itemsize)


class HostBackend(Backend):
    """Runs NumPy, and anything else that computes on NumPy arrays."""

    name = "host"
    workspace_type = HostWorkspace
