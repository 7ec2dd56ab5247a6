"""What a run measures with: the device, its fingerprint, the backends that work here and the baselines."""

from __future__ import annotations

import functools
import math
import os
import secrets
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends import backend as backends
from pytest_gpukern.baseline.store import Store
from pytest_gpukern.gate.spread import spread_key
from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.fingerprint import take_fingerprint
from pytest_gpukern.gpu.lock import DeviceLock
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import GpuProcess, Nvml, open_nvml
from pytest_gpukern.gpu.processes import (
    FAMILY,
    DeviceWatch,
    ancestors,
    foreign_process_warning,
    foreign_processes,
    remaining,
)
from pytest_gpukern.gpu.selection import Pin, missing_gpu_reason, pin, select, visible_devices
from pytest_gpukern.gpu.simulator.errors import missing_gpu_in_error
from pytest_gpukern.gpu.simulator.switch import deactivate
from pytest_gpukern.gpu.theory import peaks_of
from pytest_gpukern.measure.canaries import measure_canaries
from pytest_gpukern.measure.ceilings import load_or_measure
from pytest_gpukern.measure.observers import Instruments, Observers
from pytest_gpukern.problems.dataset import MOST_CORNERS, Datasets
from pytest_gpukern.values.backend_table import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.baseline.history import Past
    from pytest_gpukern.gate.comparability import SessionTime
    from pytest_gpukern.gate.spread import SharedSpread
    from pytest_gpukern.gpu.fingerprint import Fingerprint
    from pytest_gpukern.gpu.simulator.switch import SimulatorState
    from pytest_gpukern.gpu.theory import Peaks
    from pytest_gpukern.measure.ceilings import Ceilings
    from pytest_gpukern.processes.child_sessions import ChildSessions
    from pytest_gpukern.values.result import CaseInfo
    from pytest_gpukern.values.settings import Settings


class Environment:
    """Device, fingerprint, backends and baselines of one process; everything is found on first use.

    Args:
        settings: what the run was asked to do.
        simulated: whether Numba's simulator stands in for a GPU, and why.
        device_spec: which GPU, where somebody chose already (the controller for its workers).
        on_wait: is told who holds the device while we wait for it.
        children: makes what starts child sessions of the run's tests; None where there is no run.
        waiting: makes what holds while a test waits for the device or for other processes.
    """

    def __init__(
        self,
        settings: Settings,
        simulated: SimulatorState,
        *,
        device_spec: str | None = None,
        on_wait: Callable[[str], None] | None = None,
        children: Callable[[], ChildSessions] | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.settings = settings
        self.simulated = simulated
        self.store = Store(
            settings.baseline, directory_override=settings.baseline_dir, reason=settings.reason
        )
        self.datasets = Datasets(seed=settings.seed)
        self.corner_datasets = Datasets(points=MOST_CORNERS, seed=settings.seed)
        self.session = secrets.token_hex(4)
        """Id of this process, which tells its measurements from those of other processes."""
        self.warnings: list[str] = []
        self._late_warnings: list[str] = []
        self._device_spec = device_spec or settings.device
        self._on_wait = on_wait
        self._children = children
        self.waiting = waiting
        """Makes what holds while a test waits for the device or for other processes."""
        self.elsewhere: str | None = None
        """Why nothing that needs a CUDA context may run in this process, in words, or None."""
        self._backends: dict[str, Backend] = {}
        self._pin: Pin | None = None
        self._nvml: Nvml | None = None
        self._strangers: Sequence[GpuProcess] = ()

    # the device

    @functools.cached_property
    def device(self) -> Device | None:
        """The GPU, chosen and pinned; the simulator in its place; or None, and `missing_gpu` says why.

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
        visible = visible_devices(nvml, os.environ)
        chosen = select(self._device_spec, visible)
        DeviceLock(chosen.uuid)  # refuses a folder that cannot be meant, before anything is measured
        if self.settings.asked:
            self._strangers = foreign_processes(nvml, chosen)
            strangers = foreign_process_warning(chosen, self._strangers)
            self.warnings += [strangers] if strangers else []
        self._pin = pin(chosen, os.environ, sys.modules)
        return chosen

    @functools.cached_property
    def missing_gpu(self) -> str | None:
        """Why there is no GPU, in words, or None."""
        return missing_gpu_reason(os.environ)

    @property
    def has_gpu(self) -> bool:
        """Whether kernels run on a real GPU here."""
        return self.device is not None and not self.device.is_simulated

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        """The conditions of this session."""
        found = self.device
        return take_fingerprint(found, self._nvml)

    @property
    def why_no_gpu(self) -> str:
        """For skips: what is missing and what was tried instead."""
        if self.simulated.active:
            return "no GPU: the simulator runs Numba kernels only"
        return f"no GPU: {self.missing_gpu}"

    # what runs here

    @property
    def measures(self) -> bool:
        """Whether kernels are timed in this run, on a real GPU."""
        return self.settings.benchmark and self.has_gpu

    def loading_observed(self, *, own: bool = True, on_gpu: bool = True) -> AbstractContextManager[None]:
        """Has the machine code hashed that is loaded meanwhile, where kernels are timed.

        To be held round everything but timing, whatever it is for: a library loads a module once, when it is
        first needed, and kernels of later tests may be in it too.

        Args:
            own: whether what is launched will be timed as it is.
            on_gpu: whether anything is.
        """
        if not (self.measures and on_gpu):
            return nullcontext()
        from pytest_gpukern.timers.cupti.machine_code import loading_observed

        return loading_observed(own=own)

    @property
    def size(self) -> str:
        """`smoke`, `full` or `huge`: full is for measuring on a real GPU, unless somebody says otherwise."""
        if self.settings.size is not None:
            return self.settings.size
        return "full" if self.measures else "smoke"

    @functools.cache  # noqa: B019 - one environment lives as long as the process
    def unusable(self, name: str) -> str | None:
        """Why backend `name` cannot run here, in words, or None.

        On a GPU the backend is opened to find out: that a library is there does not mean that it imports,
        or fits the driver.
        """
        if name not in BACKENDS:
            return f"the backend {name!r} is none of {', '.join(BACKENDS)}"
        chosen = self.settings.backends
        if chosen and name not in chosen:  # nor need its variants be imported
            return f"not selected: --gpukern-backend={','.join(chosen)}"
        missing = backends.missing_library(name)
        if missing is not None:
            return missing
        if self.elsewhere is not None:  # nor is anything imported that would be of no use here
            return self.elsewhere
        if name == "host" or (self.simulated.active and BACKENDS[name].simulated_by):
            return None
        if not self.has_gpu:
            return self.why_no_gpu
        from pytest_gpukern.gpu.runtime import runtime

        runtime()  # a device that refuses is no library's fault, and no reason to skip
        try:
            self.backend(name)
        except Exception as error:  # noqa: BLE001 - from an unresolved symbol to a NumPy that is too new
            text = " ".join(str(error).split()) or "no reason given"
            return f"the backend {name} cannot be opened: {type(error).__name__}: {text}"
        return None

    def backend(self, name: str) -> Backend:
        """The backend `name`, opened once; ask `unusable` first."""
        if name not in self._backends:
            self._backends[name] = backends.open_backend(name, simulated=self.simulated.active)
        return self._backends[name]

    @property
    def notes(self) -> list[str]:
        """What was supplied from outside to the libraries opened so far, with their versions."""
        return [note for opened in self._backends.values() for note in opened.notes]

    @functools.cached_property
    def memory_budget_bytes(self) -> float:
        """Host memory that a case which can shrink may take for inputs, outputs and reference.

        Rounded down to a power of two and asked once, so that two runs on one machine shrink alike.

        A sixty-fourth of what is free: up to four copies of the arrays exist at a time (the data set, a
        variant's private one, what it stages or returns), filling them costs time, and others live here.
        """
        return 2.0 ** math.floor(math.log2(available_host_bytes() / 64))

    # what a measurement is judged by

    @functools.cached_property
    def instruments(self) -> Instruments | None:
        """What the device is looked at with; None without a GPU. Made once there is a CUDA context."""
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
        """What looks at the device around what is timed."""
        return Observers(self)

    @functools.cached_property
    def peaks(self) -> Peaks | None:
        """What the device cannot exceed; None without a GPU."""
        if not self.has_gpu or self._nvml is None or self.device is None:
            return None
        from pytest_gpukern.gpu.runtime import runtime

        return peaks_of(self._nvml, self.device, runtime().device.properties)

    @functools.cached_property
    def ceilings(self) -> Ceilings | None:
        """What the device does at best, measured once; None without a GPU. Ask while holding the device."""
        if not self.has_gpu:
            return None
        return load_or_measure(self.fingerprint, peaks=self.peaks, warn=self._late_warnings.append)

    @functools.cached_property
    def canaries(self) -> Mapping[str, float]:
        """What fixed kernels take in this session; nothing without a GPU. Ask while holding the device."""
        if not self.has_gpu:
            return {}
        found = measure_canaries()
        self._late_warnings += found.complaints
        return found.times_ns

    def take_late_warnings(self) -> tuple[str, ...]:
        """What is worth saying since the header was printed; each is given once, to the result at hand."""
        taken = tuple(self._late_warnings)
        self._late_warnings.clear()
        return taken

    # baselines

    def model_key(self, *, on_gpu: bool) -> str:
        """Which hardware a time belongs to: the device's model, or the processor's for a host variant."""
        if on_gpu and self.device is not None:
            return self.device.model_key
        return self.fingerprint.cpu_model_key

    def recorded(self, case: CaseInfo, key: str, *, on_gpu: bool) -> tuple[SessionTime, ...]:
        """The recorded sessions that a measurement under `key` is judged by."""
        return self.store.sessions_for(case, self.model_key(on_gpu=on_gpu), key)

    def past(self, case: CaseInfo, key: str | None = None) -> Past | None:
        """All that is known of those sessions, or without a `key` of the newest epoch of the case."""
        return self.store.past(case, self.model_key(on_gpu=case.on_gpu), key)

    def anchor(self, case: CaseInfo, key: str, *, on_gpu: bool) -> tuple[SessionTime, ...]:
        """The sessions of the case's first epoch, where that is not the one it is judged by."""
        return self.store.anchor_for(case, self.model_key(on_gpu=on_gpu), key)

    def newer_epoch(self, case: CaseInfo, key: str) -> str | None:
        """When the case's newest epoch was opened, where that lacks `key` and an older one is judged by."""
        return self.store.newer_epoch(case, self.model_key(on_gpu=case.on_gpu), key)

    def shared_spread(self, key: str, *, on_gpu: bool) -> SharedSpread | None:
        """What the recorded cases have in common under this scope and timer; None where none is recorded."""
        return self.store.shared_spread(self.model_key(on_gpu=on_gpu)).get(spread_key(key))

    # child sessions

    @functools.cached_property
    def children(self) -> ChildSessions:
        """What starts child sessions of this run's tests."""
        assert self._children is not None, "nobody runs tests in this process"
        return self._children()

    @property
    def for_children(self) -> dict[str, str]:
        """Environment variables of a child: by which it knows this process's idle context for one of ours."""
        own_pids = self.own_pids
        return {FAMILY: ",".join(map(str, own_pids))} if own_pids else {}

    @property
    def own_pids(self) -> list[int]:
        """Process ids of this process and its ancestors as NVML gives them, once it was asked.

        Where nothing is measured here, what has come to the device since this run began is taken to be this
        process: tests may make a context while they are collected.
        """
        if "instruments" in vars(self):
            return sorted(self.instruments.states.ours) if self.instruments else []
        if self.elsewhere is None or self._nvml is None or self.device is None:
            return []
        return sorted(DeviceWatch(self._nvml, self.device, self._strangers).ours)

    def left_on_device(self, pids: Iterable[int]) -> list[str]:
        """What is said of processes of ours that have a context although they have ended; waits for them.

        Args:
            pids: their process ids, as they or NVML give them.
        """
        if self._nvml is None or self.device is None:
            return []
        left = remaining(self._nvml, self.device, set(pids) - {os.getpid(), *ancestors()})
        return [f"gpukern: still on the GPU, although it was ended: {process}" for process in left]

    # one measurement at a time

    @functools.cached_property
    def _lock(self) -> DeviceLock | None:
        if not self.has_gpu or self.device is None:
            return None
        lock = DeviceLock(self.device.uuid)
        if lock.unavailable_reason is not None:
            self._late_warnings.append(lock.unavailable_reason)
        return lock

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the device for one measurement; does nothing without a GPU."""
        lock = self._lock
        if lock is None:
            yield
            return
        with self.waiting():
            lock.acquire(self._on_wait)
        try:
            yield
        finally:
            lock.release()

    def context_fault(self) -> str | None:
        """Why the CUDA context of this process cannot be used any more, by CUDA's name of the error, or None.

        Waits for all that is under way on the device.
        """
        if not self.has_gpu or self.elsewhere is not None:
            return None
        from pytest_gpukern.gpu.runtime import context_fault

        return context_fault()

    def close(self) -> None:
        """Puts the process's environment back and closes NVML."""
        if self._pin is not None:
            self._pin.restore()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        deactivate()


def available_host_bytes() -> float:
    """Host memory that can be used without swapping, as Linux estimates it; else half of what there is."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - not a file of ours
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def cannot_import(error: BaseException) -> str | None:
    """Why an exception while importing kernels means that there is no GPU, in words, or None."""
    reason: Any = missing_gpu_in_error(error)
    return f"no GPU: {reason}" if reason else None
