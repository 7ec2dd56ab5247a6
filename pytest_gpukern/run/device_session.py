"""Chooses, pins and describes the device of one process, and holds what measures and watches it.

What needs NumPy is imported where something is measured: a run that tests no kernel starts 0.1 s earlier.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.fingerprint import take_fingerprint
from pytest_gpukern.gpu.lock import DeviceLock, HostTurns
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import GpuProcess, Nvml, open_nvml
from pytest_gpukern.gpu.processes import FAMILY, DeviceWatch, foreign_process_warning, foreign_processes
from pytest_gpukern.gpu.selection import missing_gpu_reason, pin, select, visible_devices
from pytest_gpukern.gpu.simulator.switch import SimulatorState, deactivate
from pytest_gpukern.gpu.theory import Peaks, peaks_of
from pytest_gpukern.measure.ceilings import Ceilings, load_or_measure, measure_canaries
from pytest_gpukern.measure.observers import Instruments, Observers
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.note import NO_GPU, Note, NotRun
from pytest_gpukern.values.options import RUN_FOLDER_VARIABLE
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.settings import Settings

_TO_LAUNCH_S = 0.05
"""How long we watch for launches of a thread that a test left running."""


class DeviceSession:
    """Holds the GPU of this process, the simulator instead, or none; finds everything on first use.

    Args:
        settings: what the run was asked to do.
        simulated: whether Numba's simulator replaces a GPU, and why.
        device_spec: which GPU, if the controller has already chosen one for its workers.
        on_wait: is told who holds the device while we wait for it.
        clock_stopped: returns a context in which the test's time does not count: it waits for others.

    Attributes:
        warnings: warnings for the header.
        host: takes turns on the host with the other workers of this run, if each has a GPU.
        why_no_context: why nothing that needs a CUDA context may run in this process, in words, or None.
    """

    _visible: tuple[Device, ...] = ()

    def __init__(
        self,
        settings: Settings,
        simulated: SimulatorState,
        *,
        device_spec: str | None = None,
        on_wait: Callable[[str], None] | None = None,
        clock_stopped: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.settings = settings
        self.simulated = simulated
        self.warnings: list[str] = []
        self.why_no_context: str | None = None
        # A run of pytest that a test starts is no part of this run: it would wait for that test.
        folder = os.environ.pop(RUN_FOLDER_VARIABLE, None)
        self.host = HostTurns(Path(folder) if folder is not None else None)
        self._late_warnings: list[str] = []
        self._device_spec = device_spec or settings.device
        self._on_wait = on_wait
        self.clock_stopped = clock_stopped
        self._pin = ExitStack()
        self._nvml: Nvml | None = None
        self._strangers: Sequence[GpuProcess] = ()
        self._locks_host = True

    @functools.cached_property
    def device(self) -> Device | None:
        """Returns the GPU, chosen and pinned; the simulator instead; or None, and `missing_gpu` says why.

        Raises:
            DeviceError: the choice or CUDA_VISIBLE_DEVICES fits no device, or two.
        """
        if self._device_spec is not None and (self.simulated.active or self.missing_gpu):
            why = self.missing_gpu or f"the simulator is on ({self.simulated.reason})"
            raise DeviceError(
                f"--gpukern-device={self._device_spec} matches no device: {why}; drop it to run without a GPU"
            )
        if self.simulated.active:
            return Device.simulated()
        if self.missing_gpu is not None:
            return None
        self._nvml = nvml = open_nvml()
        self._visible = visible_devices(nvml, os.environ)
        chosen = select(self._device_spec, self._visible)
        DeviceLock(chosen.uuid)  # refuses an impossible folder before anything is measured
        if self.settings.requested:
            self._strangers = foreign_processes(nvml, chosen)
            strangers = foreign_process_warning(chosen, self._strangers)
            self.warnings += [strangers] if strangers else []
        self._pin = pin(chosen, os.environ)
        return chosen

    @property
    def cards(self) -> tuple[Device, ...]:
        """Returns the GPUs that workers of xdist may measure on; none if this run measures on no GPU.

        Those are the visible ones of the chosen one's model, whose records are the same file. If the user
        named a device, it is that one alone.
        """
        device = self.device
        if device is None or not self.measures:
            return ()
        if self._device_spec is not None:
            return (device,)
        return tuple(card for card in self._visible if card.model_key == device.model_key)

    @property
    def of_other_models(self) -> tuple[Device, ...]:
        """Returns the visible GPUs that workers leave unused for their model; none if the user named one."""
        cards = self.cards
        left = cards and self._device_spec is None
        return tuple(card for card in self._visible if card not in cards) if left else ()

    @functools.cached_property
    def missing_gpu(self) -> str | None:
        """Says why there is no GPU; returns None if there is one."""
        if self.settings.code:
            return "--gpukern-code compiles kernels, and runs none"
        return missing_gpu_reason(os.environ)

    @property
    def has_gpu(self) -> bool:
        """Returns whether kernels run on a real GPU here."""
        return self.device is not None and not self.device.is_simulated

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        device = self.device  # which opens NVML
        return take_fingerprint(device, self._nvml)

    @property
    def why_no_gpu(self) -> str:
        """Says for skips what is missing and what was tried instead."""
        if self.simulated.active:
            return NotRun(NO_GPU, "the simulator runs kernels of Numba and Triton only")
        return NotRun(NO_GPU, str(self.missing_gpu))

    def model_key(self, *, on_gpu: bool) -> str:
        """Returns which hardware a time belongs to: the device's model, or a host variant's processor."""
        if on_gpu and self.device is not None:
            return self.device.model_key
        return self.fingerprint.model_key(on_gpu=False) or "unknown"

    # what measures and watches it

    @property
    def measures(self) -> bool:
        """Returns whether kernels are timed in this run, on a real GPU."""
        return self.settings.benchmark and self.has_gpu

    def loading_observed(self, *, begins: bool = False, on_gpu: bool = True) -> AbstractContextManager[None]:
        """Hashes the machine code that is loaded meanwhile, if kernels are timed.

        Hold it around everything but timing. A library loads a module once, when it first needs it, and
        kernels of later tests may be in it too.

        Args:
            begins: whether a test begins.
            on_gpu: whether anything is launched.
        """
        return self._observed(lambda code: code.loading(begins=begins)) if on_gpu else nullcontext()

    def launches_observed(self) -> AbstractContextManager[None]:
        """Hashes the code that is loaded meanwhile, and finds the modules of a call's kernels.

        Hold it around one call between the first and the timed ones: it slows launches, so nothing may take
        times of its own meanwhile, as an autotuner does in the first call.
        """
        return self._observed(lambda code: code.launches())

    def _observed(
        self, observe: Callable[[Any], AbstractContextManager[None]]
    ) -> AbstractContextManager[None]:
        if not self.measures:
            return nullcontext()
        from pytest_gpukern.timers.cupti.machine_code import observed

        return observed(observe)

    @functools.cached_property
    def instruments(self) -> Instruments | None:
        """Returns the instruments for looking at the device; None without a GPU. Needs a CUDA context."""
        if not self.has_gpu or self._nvml is None or self.device is None:
            return None
        from pytest_gpukern.gpu.clock_probe import ClockProbe
        from pytest_gpukern.gpu.runtime import runtime

        limits = self._nvml.limits(self.device.uuid)
        return Instruments(
            DeviceWatch(self._nvml, self.device, self._strangers),
            ClockProbe(runtime()),
            limits.sm_clock_mhz,
            limits.memory_clock_mhz,
        )

    @functools.cached_property
    def observers(self) -> Observers:
        return Observers(self)

    @functools.cached_property
    def peaks(self) -> Peaks | None:
        """Returns what the device cannot exceed; None without a GPU."""
        if not self.has_gpu or self._nvml is None or self.device is None:
            return None
        from pytest_gpukern.gpu.runtime import runtime

        return peaks_of(self._nvml, self.device, runtime().device.properties)

    @functools.cached_property
    def ceilings(self) -> Ceilings | None:
        """Returns the best that the device does, measured once; None without a GPU. Hold the device first."""
        if not self.has_gpu:
            return None
        from pytest_gpukern.gpu.ceiling_kernels import measure_ceilings

        return load_or_measure(self.fingerprint, self._late_warnings.append, measure_ceilings)

    @functools.cached_property
    def canaries(self) -> Mapping[str, float]:
        """Returns what fixed kernels take in this session; empty without a GPU. Hold the device first."""
        if not self.has_gpu:
            return {}
        measured = measure_canaries()
        self._late_warnings += measured.complaints
        return measured.values

    def take_late_warnings(self) -> tuple[Note, ...]:
        """Returns the warnings since the header was printed, each once: to the current result."""
        notes = tuple(map(Note, self._late_warnings))
        self._late_warnings.clear()
        return notes

    # its processes

    @property
    def for_children(self) -> dict[str, str]:
        """Returns a child's environment variables, by which it knows our idle contexts and our run."""
        folder = self.host.folder
        variables = {FAMILY: ",".join(map(str, self.own_pids)), RUN_FOLDER_VARIABLE: str(folder or "")}
        return {name: value for name, value in variables.items() if value}

    @property
    def own_pids(self) -> list[int]:
        """Returns the process ids of this process and its ancestors as NVML gives them, once it was asked.

        If nothing is measured here, we take what has come to the device since this run began for this
        process: tests may make a context while they are collected.
        """
        if "instruments" in vars(self):
            return sorted(self.instruments.states.ours) if self.instruments else []
        if self.why_no_context is None or self._nvml is None or self.device is None:
            return []
        return sorted(DeviceWatch(self._nvml, self.device, self._strangers).ours)

    # One measurement at a time. `working` holds the device for a whole test. `timing` also holds the host
    # against other runs, for what is timed there; `timing_by_host` against this run's own workers.

    @functools.cached_property
    def _lock(self) -> DeviceLock | None:
        return DeviceLock(self.device.uuid) if self.has_gpu and self.device is not None else None

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Waits for others; neither the clock of the test nor the clock of its work runs meanwhile."""
        with phase("waiting"), self.clock_stopped():
            yield

    def exclusive(self) -> AbstractContextManager[None]:
        """Holds the device for one measurement; does nothing without a GPU."""
        return nullcontext() if self._lock is None else self._holding(self._lock)

    @contextmanager
    def _holding(self, lock: DeviceLock, **how: float) -> Iterator[None]:
        with self._idle():
            lock.acquire(self._on_wait, **how)
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Holds the device for one test, and says to the other workers that this one works on the host."""
        with self.exclusive(), self.host.busy():
            yield

    def timing(self, *, on_gpu: bool) -> AbstractContextManager[None]:
        """Holds the host while something is timed on it; `exclusive` holds the GPU for what runs there.

        What is timed on the GPU leaves the host to other workers (but see `timing_by_host`). A host that
        cannot be locked is a warning.
        """
        return self._in_turn(self.host.resting()) if on_gpu and self.has_gpu else self._host_held()

    def timing_by_host(self) -> AbstractContextManager[None]:
        """Keeps the other workers of this run from working while the host times something."""
        return self._in_turn(self.host.alone())

    @contextmanager
    def _in_turn(self, turn: AbstractContextManager[None]) -> Iterator[None]:
        """Holds a turn on the host; the test's clock stands still while it waits for it, and for the next."""
        with self._idle():
            turn.__enter__()
        try:
            yield
        finally:
            with self._idle():
                turn.__exit__(None, None, None)

    @contextmanager
    def _host_held(self) -> Iterator[None]:
        """Holds the host against the other workers of this run, and against other runs."""
        with self.timing_by_host(), ExitStack() as held:
            try:
                if self._locks_host:
                    # Workers of one run wait a fraction of a second for each other: too short to report.
                    host = self._holding(DeviceLock("the host"), poll_s=0.01, quiet_s=10.0)
                    held.enter_context(host)
            except DeviceError as error:
                self._late_warnings.append(f"the host is not locked against other timings: {error}")
                self._locks_host = False
            yield

    @property
    def contexts(self) -> ModuleType | None:
        """Returns what knows the CUDA context that tests of this process use; None where they use none."""
        if not self.has_gpu or self.why_no_context is not None:
            return None
        from pytest_gpukern.gpu import runtime

        return runtime

    def launching_threads(self) -> str:
        """Names the threads that launch on the GPU now, if kernels are timed; returns "" for none."""
        if not self.settings.benchmark or self.contexts is None:
            return ""
        from pytest_gpukern.timers.cupti.timer import launching_threads

        return launching_threads(_TO_LAUNCH_S)

    def close(self) -> None:
        """Restores the process's environment and closes NVML."""
        self._pin.close()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        deactivate()
