"""Defines what a backend is, and opens one by its name."""

from __future__ import annotations

import itertools
import pkgutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from pytest_gpukern.arrays.compare import POISONS, Comparison, Tolerance, compare
from pytest_gpukern.arrays.memory import INPUT_GUARD, OUTPUT_GUARD, Damage, Placement, Span
from pytest_gpukern.backends.foreign_array import UsersArray
from pytest_gpukern.problems.problem import Output
from pytest_gpukern.values.backend_table import BACKENDS


def is_array(value: Any) -> bool:
    """Returns whether an input is an array, and not a scalar."""
    return hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) > 0


class Workspace(ABC):
    """Holds the arrays of one case in its variant's library: inputs, outputs, and what a launch returned.

    Attributes:
        arrays: name → array of the backend's own type, or scalar, as given to the variant.
    """

    def __init__(
        self,
        backend: Backend,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> None:
        self.arrays: dict[str, Any] = dict(inputs)
        self._backend: Any = backend
        self._poisons = itertools.cycle(backend.poisons)
        self._guarded: dict[str, Any] = {}  # our inputs and outputs, between guard zones
        self._places: dict[str, UsersArray] = {}  # where these lie
        self._inputs = [name for name, value in inputs.items() if is_array(value) and name not in outputs]
        self._outputs = list(outputs)
        self._returned: dict[str, tuple[UsersArray, Any]] = {}
        for name in (*self._inputs, *outputs):
            form, guard = (outputs[name], OUTPUT_GUARD) if name in outputs else (inputs[name], INPUT_GUARD)
            self._make(name, form, guard, (placed or {}).get(name))
        self.fill(inputs)
        self.poison()

    @abstractmethod
    def _make(self, name: str, form: Any, guard: int, placement: Placement | None) -> None:
        """Makes a guarded array where its placement says, notes its place, and gives it to the variant."""

    @abstractmethod
    def load(self, inputs: Mapping[str, Any]) -> None:
        """Copies contents from the host into the input arrays, as a user would, and waits for it."""

    @abstractmethod
    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Puts contents into the input arrays as fast as possible, and waits for it."""

    def poison(self) -> None:
        """Fills every output with the other poison than before, and waits for it.

        An output that is an input too gets its original contents back, here and in `queue_poison`.
        """
        self._poison = next(self._poisons)
        self.queue_poison(None)
        self._returned.clear()

    @abstractmethod
    def queue_poison(self, stream: Any) -> None:
        """Fills every output with the last poison again; on a device it only queues that on `stream`."""

    def adopt(self, output: str, value: Any) -> UsersArray | None:
        """Takes an array that a launch returned as `output`.

        Returns None if it is not exactly of the type of our array, has no values yet or lives elsewhere.
        """
        # A subclass may compute when it is compared.
        place = self._taken(output, value) if type(value) is type(self.arrays[output]) else None
        if place is not None:
            self._returned[output] = place, value
        return place

    @abstractmethod
    def _taken(self, output: str, value: Any) -> UsersArray | None:
        """Returns where an array of that type lies, or None to refuse it."""

    def place(self, output: str) -> UsersArray:
        """Returns where an output lies now: the array that was returned, or ours."""
        return self._returned[output][0] if output in self._returned else self._places[output]

    def input_spans(self) -> dict[str, Span]:
        """Returns the addresses of each input array."""
        return {name: self._places[name].span for name in self._inputs}

    def spans(self) -> dict[str, Span]:
        """Returns the addresses of each array, outputs where the last launch left them."""
        return self.input_spans() | {name: self.place(name).span for name in self._outputs}

    def compare(self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance) -> Comparison:
        """Compares an output with its reference, on the device if it lives there."""
        place = self.place(output)
        actual = self.fetch(output) if place.host is None else place.host
        return compare(actual, expected, tolerance, poison=self._poison or None)

    def fetch(self, output: str, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies an output to the host and waits for it."""
        return self.place(output).fetch(into)

    @abstractmethod
    def digest(self) -> dict[str, int]:
        """Returns a hash of the contents of each input array."""

    @abstractmethod
    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Returns the result of `digest` for these contents."""

    def damage(self) -> list[Damage]:
        """Returns what was written into the guard zones of inputs and outputs, once the device is idle."""
        return [damage for name, array in self._guarded.items() for damage in array.damage(name)]

    def bits(self, output: str) -> str | None:
        """Returns a hash of an output's bytes with its method, the same in every process and release.

        We compute it where the output lives. None if its memory has gaps or is not all values.
        """
        place = self.place(output)
        elsewhere = place.on_device and (place.strides is not None or place.pointer % 4)
        return None if elsewhere else place.bits()

    def written_late(self, launch: Callable[[], None], *, hold_ns: float) -> list[str]:  # noqa: ARG002
        """Launches, and returns the outputs written after the timed stream was done; none on the host.

        For `hold_ns`, time to launch and to queue a few copies, nothing else may begin on the device.
        """
        return []

    def close(self) -> None:
        """Gives the memory back."""
        for held in (self.arrays, self._guarded, self._places, self._returned):
            held.clear()


class Backend:
    """Defines what we need of a library; the defaults suit a library on the host.

    Attributes:
        name: as in `Problem.variant("…")`.
        on_gpu: its kernels run on a real GPU.
        simulated: its kernels run in Numba's simulator.
        stream: what variants get as `stream`, in the library's own type; None on the host.
        timed_stream: the same stream as one of cuda.core, for timers; None on the host and in the simulator.
        poisons: what we fill outputs with in turn, one before each checked launch.
        workspace_type: makes a `Workspace` of a backend, inputs, outputs and placements.
    """

    name: str
    on_gpu = False
    simulated = False
    stream: Any = None
    timed_stream: Any = None
    poisons: tuple[int, ...] = POISONS
    workspace_type: type[Workspace]

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> Workspace:
        """Makes the arrays of a case, with inputs loaded and outputs poisoned, laid out as in `placed`."""
        return self.workspace_type(self, inputs, outputs, placed)

    def current(self) -> AbstractContextManager[Any]:
        """Makes launches that name no stream go to `stream` while entered."""
        return nullcontext()

    def synchronize(self) -> None:
        """Waits for all work on the device, from any library or stream."""

    def release(self) -> None:
        """Gives pooled device memory back."""


def open_backend(name: str, *, simulated: bool) -> Backend:
    """Returns the backend `name`, ready for use on the pinned device.

    Raises:
        Exception: whatever a missing or broken library raises. Ask `missing_library` first.
    """
    row = BACKENDS[name]
    backend = (simulated and row.simulated_by) or row.opened_by
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings at import are no test's fault
        opened: Backend = pkgutil.resolve_name(f"{__package__}.{backend}")()
    return opened
