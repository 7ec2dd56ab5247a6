"""Makes arrays with guard zones for plain tests, as those of problems have."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.backends.foreign_array import backend_of, users_array
from pytest_gpukern.check.diagnosis import Diagnosis, IncorrectError, diagnose_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpukern.backends.backend import Backend, Workspace
    from pytest_gpukern.backends.foreign_array import UsersArray
    from pytest_gpukern.problems.problem import Output


class _Held(NamedTuple):
    backend: Backend
    workspace: Workspace


class GuardedArrays:
    """Holds the guarded arrays of one test; `backend` opens a backend by its name."""

    def __init__(self, backend: Callable[[str], Backend]) -> None:
        self._backend = backend
        self._held: list[_Held] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def copy(self, array: Any, name: str | None) -> Any:
        """Returns a copy of an array in guarded memory, of the same library, shape and dtype, in C order.

        Raises:
            TypeError: it is not an array that can be guarded; the message says which can.
        """
        library, found = _known(array)
        name = name or self._next_name
        made = self._made(library, {name: found.fetch()}, {}, name)
        if self._backend(library).on_gpu:
            from pytest_gpukern.gpu.runtime import runtime

            runtime().forget_dead_copies()  # the contents came through one
        return made

    def like(self, array: Any, name: str | None) -> Any:
        """Returns a poisoned array like another, in guarded memory, for a call to write; raises as `copy`."""
        from pytest_gpukern.problems.problem import Output

        library, found = _known(array)
        name = name or self._next_name
        return self._made(library, {}, {name: Output(found.shape, found.dtype)}, name)

    def check(self, place: str) -> None:
        """Raises IncorrectError if a guard zone was written; `place` says after which calls."""
        found = []
        for backend, workspace in self._held:
            backend.synchronize()
            found += workspace.damage()
        diagnosis = diagnose_damage(found)
        if diagnosis is not None:
            raise IncorrectError(Diagnosis(diagnosis.fault, f"{diagnosis.message}\n  seen {place}"))

    def close(self) -> None:
        """Frees the arrays; a lost CUDA context leaves nothing to free."""
        held, self._held = self._held, []
        with ExitStack() as freed:
            for backend, workspace in held:
                if backend.on_gpu:
                    from pytest_gpukern.gpu.libcuda import CudaError

                    freed.enter_context(suppress(CudaError))
                freed.callback(workspace.close)

    @property
    def _next_name(self) -> str:
        return f"guarded array {len(self._held) + 1}"

    def _made(self, library: str, inputs: Mapping[str, Any], outputs: Mapping[str, Output], name: str) -> Any:
        backend = self._backend(library)
        workspace = backend.workspace(inputs, outputs)
        self._held.append(_Held(backend, workspace))
        return workspace.arrays[name]


def _known(array: Any) -> tuple[str, UsersArray]:
    """Returns the backend of an array's library and where the array lies; raises TypeError for others."""
    library, found = backend_of(array), users_array(array)
    why = None
    if library is None or found is None or not found.holds_numbers:
        why = "is not an array of numbers from a known library"
    elif "bfloat16" in found.read_as:
        why = "is of bfloat16, which NumPy lacks"
    elif found.shape == ():
        why = "has no dimension"
    elif library == "torch" and not found.on_device:
        why = "is in host memory"
    if why is not None or library is None or found is None:
        kind = type(array)
        raise TypeError(
            f"gpu_benchmark.guarded: {kind.__module__}.{kind.__qualname__} {why}: give a NumPy array, or "
            "a device array of Numba, CuPy, PyCUDA or PyTorch, of one dimension or more"
        )
    return library, found
