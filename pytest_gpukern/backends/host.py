"""Runs variants on the host's processor, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from pytest_gpukern.arrays.compare import Comparison, Tolerance
from pytest_gpukern.arrays.memory import BOUNDARY_BYTES, Damage, Placed, Placement
from pytest_gpukern.backends.backend import Backend, Workspace
from pytest_gpukern.backends.foreign_array import UsersArray, checksums
from pytest_gpukern.backends.gpu_backend import compare_large_from_host


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


class HostWorkspace(Workspace):
    """Holds the NumPy arrays of one case; the inputs are private copies."""

    def _make(self, name: str, form: Any, guard: int, placement: Placement | None) -> None:
        guarded = GuardedArray(form.shape, form.dtype, guard, placement)
        self._guarded[name], self._places[name] = guarded, UsersArray.of_host(guarded.array)
        self.arrays[name] = self._given(guarded.array)

    def _given(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns an array on the same memory, as the variant gets it; nobody would see a copy."""
        return array

    def _taken(self, output: str, value: Any) -> UsersArray | None:  # noqa: ARG002
        return UsersArray.of_host(value)

    def load(self, inputs: Mapping[str, Any]) -> None:
        self._before = {name: inputs[name] for name in self._outputs if name in inputs}
        for name in (*self._inputs, *self._before):
            self._places[name].put(inputs[name])

    fill = load

    def queue_poison(self, stream: Any) -> None:  # noqa: ARG002 - the host has no streams
        for name in self._outputs:
            if name in self._before:
                self._places[name].put(self._before[name])
            else:
                self._places[name].poison(self._poison)

    def compare(self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance) -> Comparison:
        place, poison = self.place(output), self._poison or None
        compared = compare_large_from_host(place, expected, tolerance, poison)
        return super().compare(output, expected, tolerance) if compared is None else compared

    def digest(self) -> dict[str, int]:
        return self.digest_of({name: self._places[name].host for name in self._inputs})

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        return {name: hash(tuple(checksums(inputs[name]))) for name in self._inputs}


class HostBackend(Backend):
    """Runs NumPy, and anything else that computes on NumPy arrays."""

    name = "host"
    workspace_type = HostWorkspace
