"""Decides whether the simulator is on, switches it on, fixes it, and restores the environment.

For Numba that is its CUDA simulator, for Triton its interpreter. Numba's serves numba-cuda-mlir, too.
"""

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import Any

from pytest_gpukern.gpu.simulator.errors import VARIABLE, SimulatorError
from pytest_gpukern.gpu.simulator.patching import ImportHook

TRITON_VARIABLE = "TRITON_INTERPRET"
OPTION = "--gpukern-simulator"
MLIR = "numba_cuda_mlir"
_MARK = "_mended_by_pytest_gpukern"

# Variables that we have set → their values before (None: not set). Like the environment, this belongs to the
# process.
_before_us: dict[str, str | None] = {}


@dataclass(frozen=True)
class SimulatorState:
    """Whether this run uses the simulator, and why, for the header and for skip reasons."""

    active: bool
    reason: str


def decide(
    mode: str,
    *,
    requested: bool,
    gpu_missing: Callable[[], str | None],
    environ: Mapping[str, str],
    modules: Mapping[str, object],
    installed: Callable[[str], bool] = lambda package: importlib.util.find_spec(package) is not None,
) -> SimulatorState:
    """Decides whether this run needs the simulator, and refuses contradictions.

    `requested` says whether this run asked for pytest-gpukern at all; if not, nothing else matters.
    `gpu_missing` returns why there is no GPU, or None; we call it only in mode ``auto``, if neither the
    environment nor a loaded Numba has decided already. `environ` and `modules` are ``os.environ`` and
    ``sys.modules``. We read the variable as Numba does: a whole number; anything else counts as not set. We
    ignore Numba's configuration file.

    Raises SimulatorError if the variable contradicts `mode`, or if Numba is already loaded the other way: it
    reads its switch once, on its first import.
    """
    if not requested:
        return SimulatorState(False, "off: this run did not ask for pytest-gpukern")
    loaded = _loaded_switch(modules)
    state = _wanted(mode, environ, loaded, gpu_missing)
    if state.active:
        libraries = (("numba", "Numba"), ("numba_cuda", "numba-cuda"))
        missing = [name for package, name in libraries if not installed(package)]
        if missing and not installed("triton"):
            return SimulatorState(False, f"{missing[0]} is not installed")
    if not state.active and _as_numba_reads(environ.get(TRITON_VARIABLE)) and installed("triton"):
        raise SimulatorError(
            f"{TRITON_VARIABLE}={environ[TRITON_VARIABLE]} in the environment runs Triton's kernels on the "
            f"host, but the simulator is {state.reason}. Unset it, or use {OPTION}=always."
        )
    if loaded is not None and loaded != state.active:
        who = "numba.cuda" if "numba.cuda" in modules else "numba"
        need, remedy = "off", f"Start Python without {VARIABLE}=1"
        if state.active:
            need, remedy = "on", f"Set {VARIABLE}=1 in the environment before Python starts"
        raise SimulatorError(
            f"{who} is already loaded with ENABLE_CUDASIM={int(loaded)}, but this run needs the CUDA "
            f"simulator {need} ({state.reason}). Numba reads its switch once, when it is first imported. "
            f"{remedy}, or keep Numba from being imported before pytest loads its plugins (a plugin or "
            "conftest given with -p, a process that an IDE keeps alive)."
        )
    if state.active and f"{MLIR}.mlir" in modules:  # a part that the simulator does not serve
        raise SimulatorError(
            f"{MLIR} is already loaded for a GPU, but this run needs the CUDA simulator on ({state.reason}): "
            "keep it from being imported before pytest loads its plugins."
        )
    return state


def activate(state: SimulatorState) -> None:
    """Switches the simulator on for this process and fixes it; does nothing for an inactive state.

    Does not import Numba, which takes a second, nor Triton: who imports ``numba.cuda`` gets it fixed, or a
    SimulatorError if this version cannot be imported or fixed. A second call changes nothing. If Numba is
    loaded, fixes it at once; raises SimulatorError, after restoring the environment, if it cannot.
    """
    if not state.active:
        return
    for variable in (VARIABLE, TRITON_VARIABLE):
        if _as_numba_reads(os.environ.get(variable)) is not True:
            _before_us.setdefault(variable, os.environ.get(variable))
            os.environ[variable] = "1"
    if _HOOK not in sys.meta_path:
        sys.meta_path.insert(0, _HOOK)
    if "numba" not in sys.modules:
        return
    try:
        _mend()
    except SimulatorError:
        deactivate()
        raise


class _SimulatorsHook(ImportHook):
    """Has the modules of `_MENDED` fixed, and numba-cuda-mlir served by numba-cuda."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] == MLIR and importlib.util.find_spec("numba_cuda"):
            from pytest_gpukern.gpu.simulator import mlir

            return mlir.find(name)
        return super().find_spec(name)


def _mend(load: Callable[[], None] = lambda: None) -> None:
    """Loads `numba.cuda` and fixes its simulator, once a process; SimulatorError if it cannot."""
    try:
        load()
        from numba.cuda import simulator
    # AttributeError: NumPy no longer has what it uses; RuntimeError: there is no libcudart
    except (ImportError, AttributeError, RuntimeError) as exc:
        raise SimulatorError(
            f"numba-cuda {metadata.version('numba-cuda')} cannot be imported ({exc}), so its CUDA simulator "
            "cannot run. Install versions that fit each other (pytest-gpukern[numba]), or use "
            "--gpukern-simulator=never."
        ) from exc
    if getattr(simulator, _MARK, False):
        return
    if "numba.cuda.simulator_init" not in sys.modules:
        raise SimulatorError(
            "NUMBA_ENABLE_CUDASIM=1 was set, but numba.cuda started for a real GPU: it was loaded, or its "
            "configuration changed, before pytest-gpukern could switch the simulator on. Set "
            "NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts."
        )
    from pytest_gpukern.gpu.simulator import device, functions, launch, threads, ufuncs

    launch.mend_launches()
    threads.mend_threads()
    launch.mend_jit()
    launch.mend_shared_memory()
    launch.mend_atomics()
    device.mend_device()
    device.mend_arrays()
    ufuncs.mend_ufuncs()
    functions.mend_namespace()
    setattr(simulator, _MARK, True)


def _mend_random(load: Callable[[], None]) -> None:
    """Loads Numba's random numbers as functions that warn of nothing, as if they were compiled.

    In the simulator Numba's `jit` takes them for the host, warns, and runs them in Python.
    """
    with warnings.catch_warnings(action="ignore"):
        load()
    import numpy as np

    module = sys.modules["numba.cuda.random"]
    for name, function in [*vars(module).items()]:
        if hasattr(function, "py_func"):
            setattr(module, name, np.errstate(over="ignore")(function.py_func))


def _mend_interpreter(load: Callable[[], None]) -> None:
    """Loads Triton's interpreter and fixes it."""
    load()
    from pytest_gpukern.gpu.simulator.interpreter import mend_interpreter

    mend_interpreter()


def _mend_autotuner(load: Callable[[], None]) -> None:
    """Loads Triton's autotuner, which takes the first configuration: the interpreter's times say nothing."""
    load()
    from triton.runtime.autotuner import Autotuner

    from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches

    tune = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with SimulatedLaunches.turn:
            configurations, self.nargs = self.configs, dict(zip(self.arg_names, args, strict=False))
            self.configs = self.prune_configs(kwargs)[:1]
            try:
                return tune(self, *args, **kwargs)
            finally:
                self.configs = configurations

    Autotuner.run = run


_MENDED = {
    "numba.cuda": _mend,
    "numba.cuda.random": _mend_random,
    "triton.runtime.interpreter": _mend_interpreter,
    "triton.runtime.autotuner": _mend_autotuner,
}
_HOOK = _SimulatorsHook(_MENDED.get)


def deactivate() -> None:
    """Restores the variables to their values before `activate`, for child processes.

    Numba and Triton stay as loaded.
    """
    if _HOOK in sys.meta_path:
        sys.meta_path.remove(_HOOK)
    while _before_us:
        variable, previous = _before_us.popitem()
        if previous is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = previous


def _wanted(
    mode: str, environ: Mapping[str, str], loaded: bool | None, gpu_missing: Callable[[], str | None]
) -> SimulatorState:
    value = environ.get(VARIABLE)
    on = _as_numba_reads(value)
    if (mode, on) in {("never", True), ("always", False)}:
        switches, remedy = ("on", f"use {OPTION}=auto") if on else ("off", f"set {VARIABLE}=1")
        raise SimulatorError(
            f"{OPTION}={mode}, but {VARIABLE}={value} in the environment switches Numba's CUDA simulator "
            f"{switches}. Unset it, or {remedy}."
        )
    if mode == "never":
        return SimulatorState(False, f"off: {OPTION}=never")
    if mode == "always":
        return SimulatorState(True, f"{OPTION}=always")
    if on:
        return SimulatorState(True, f"{VARIABLE}={value}")
    if loaded and on is None:
        return SimulatorState(True, "Numba was already loaded as the simulator")
    missing = gpu_missing()
    if missing is None:
        return SimulatorState(False, "off: a GPU is there")
    if on is False:
        return SimulatorState(False, f"off: {VARIABLE}={value} (no GPU: {missing})")
    return SimulatorState(True, f"no GPU: {missing}")


def _as_numba_reads(raw: str | None) -> bool | None:
    """Reads a value as `numba.core.config` does: ``int(value)``, or the default with a warning.

    So ``"2"`` and ``" 1 "`` are on, ``"0"`` is off, and ``""``, ``"yes"`` and ``"true"`` count as not set.
    """
    try:
        return bool(int(raw))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _loaded_switch(modules: Mapping[str, object]) -> bool | None:
    """Returns what a loaded Numba is, or None when it is not loaded.

    Its two `*_init` modules decide: numba.cuda has loaded one of them. ENABLE_CUDASIM itself says less, since
    every compilation reads it again (`reload_config`) once the environment has changed.
    """
    if "numba.cuda.simulator_init" in modules:
        return True
    if "numba.cuda.device_init" in modules:
        return False
    if "numba.core.config" not in modules:
        return None
    return bool(getattr(modules["numba.core.config"], "ENABLE_CUDASIM", False))
