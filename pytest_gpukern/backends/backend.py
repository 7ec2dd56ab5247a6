"""Defines what a backend is, and opens one by its name."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.values.backend_table import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from pytest_gpukern.arrays.compare import Comparison, Tolerance
    from pytest_gpukern.arrays.memory import Damage, Placement, Span
    from pytest_gpukern.problems.problem import Output

Array = Any


class Form(NamedTuple):
    """Shape, dtype and strides of an array; these in bytes, or None where it lies in C order without gaps."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...] | None


class Workspace(Protocol):
    """Arrays of one case where its variant wants them: inputs, outputs, and what a launch returned.

    Attributes:
        arrays: name → array of the backend's own type, or scalar, as given to the variant.
        array_type: the one type of arrays that a launch may return.
    """

    arrays: dict[str, Array]
    array_type: type[Any]

    def load(self, inputs: Mapping[str, Any]) -> None:
        """Copies contents from the host into the input arrays and waits for it: what a user's copy does."""

    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Puts contents into the input arrays by the fastest way there is, and waits for it."""

    def poison(self) -> None:
        """Fills every output with the other poison than before, and waits for it.

        One that is an input too gets the contents back that it was filled with, here and in `queue_poison`.
        """

    def queue_poison(self, stream: Any) -> None:
        """Fills every output with the poison of last time, on a device only queued on a cuda.core stream."""

    def adopt(self, output: str, value: Any) -> Form | None:
        """Takes an array that a launch returned as `output`.

        None where it is not of `array_type`, which no subclass is, has no values yet or lives elsewhere.
        """

    def input_spans(self) -> dict[str, Span]:
        """Returns the addresses of each input array."""

    def returned_span(self, output: str) -> Span:
        """Returns the addresses that what was adopted as `output` lies between."""

    def compare(self, output: str, expected: np.ndarray[Any, Any], tolerance: Tolerance) -> Comparison:
        """Compares an output with its reference, on the device where it lives there."""

    def fetch(self, output: str, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies an output to the host and waits for it."""

    def digest(self) -> dict[str, int]:
        """Returns a hash of the contents of each input array."""

    def digest_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Returns what `digest` says while the input arrays hold these contents."""

    def damage(self) -> list[Damage]:
        """Returns what was written into the guard zones of inputs and outputs, once the device is idle."""

    def bits(self, output: str) -> str | None:
        """Returns a hash of an output's bytes, the same in every process and release, named by its method.

        Taken where the output lives; None where its memory is not in one piece, or is not all values.
        """

    def written_late(self, launch: Callable[[], None], *, hold_ns: float) -> list[str]:
        """Launches, and returns outputs that were written after the timed stream was done; none on the host.

        For `hold_ns` nothing else may begin on the device: enough to launch and to queue a few copies.
        """

    def close(self) -> None:
        """Gives the memory back."""


class Backend:
    """One library that variants are written with; its base class, which does nothing where nothing is needed.

    Attributes:
        name: as in `Problem.variant("…")`.
        on_gpu: its kernels run on a real GPU.
        simulated: its kernels run in Numba's simulator.
        stream: what variants get as `stream`, in the library's own type; None on the host.
        timed_stream: the same stream as cuda.core's, for timers; None on the host and in the simulator.
        notes: what was supplied from outside so that the library works here, in words.
        poisons: what outputs are filled with in turn, one before each checked launch.
    """

    name: str
    on_gpu = False
    simulated = False
    stream: Any = None
    timed_stream: Any = None
    notes: tuple[str, ...] = ()
    poisons: tuple[int, int] = POISONS

    def workspace(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Output],
        placed: Mapping[str, Placement] | None = None,
    ) -> Workspace:
        """Makes the arrays of a case, inputs loaded and outputs poisoned, those in `placed` laid out so."""
        raise NotImplementedError

    def current(self) -> AbstractContextManager[Any]:
        """While entered, launches that name no stream go to `stream`."""
        return nullcontext()

    def preparing(self) -> AbstractContextManager[Any]:
        """While entered, a variant prepares: as `current`, and a library may remember what it looked up."""
        return self.current()

    def synchronize(self) -> None:
        """Waits for all work on the device, whatever library or stream it came from."""

    def release(self) -> None:
        """Gives pooled device memory back."""


def missing_library(name: str) -> str | None:
    """Returns which package backend `name` lacks, in words, or None; imports nothing heavy."""
    for module, package in BACKENDS[name].needs:
        if not installed(module):
            return f"{package} is not installed"
    return None


def installed(module: str) -> bool:
    """Returns whether `module` can be found; nothing is executed to find out."""
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if module == "numba.cuda":  # Numba itself carries an older numba.cuda: numba-cuda is what is meant
        return importlib.util.find_spec("numba_cuda") is not None
    locations = list(spec.submodule_search_locations or ())
    return not rest or importlib.machinery.PathFinder.find_spec(module, locations) is not None


def open_backend(name: str, *, simulated: bool) -> Backend:
    """Returns the backend `name`, ready for use on the pinned device.

    Raises:
        LookupError: there is no such backend.
        Exception: its library is missing or broken: whatever that raises. Ask `missing_library` first.
    """
    if name not in BACKENDS:
        raise LookupError(f"backend {name!r} is none of {', '.join(BACKENDS)}")
    row = BACKENDS[name]
    module, _, backend = ((simulated and row.simulated_by) or row.opened_by).partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library warns of when it is imported is no test's fault
        opened: Backend = getattr(importlib.import_module(f"{__package__}.{module}"), backend)()
    return opened
