"""The machine code that libraries load into the device, by CUPTI's callback on each module.

Whatever compiled it, a module is loaded through the driver, so that one place serves every library. Its
SHA-256 is kept: the same hash before and after a driver upgrade says that the compiler did not change the
kernel, and another one that it did. So is the code, until somebody asks what one of its kernels spills.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpukern import cubin
from pytest_gpukern.timers import TimerUnavailable
from pytest_gpukern.timers.activity import ActivityTrace, activity_trace

if TYPE_CHECKING:
    from collections.abc import Iterator


MOST_KEPT_BYTES = 256 << 20
"""Of modules of which nothing was asked yet; the oldest go first. Reading one of 18 kB took 0.14 ms, 0.5 MB
with 46 kernels that spill 4 ms: too long to add it to each first call."""


class _ModuleResource(ctypes.Structure):
    """CUpti_ModuleResourceData; cupti-python turns the code into text, which it is not."""

    _fields_ = (("module_id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("code", ctypes.c_void_p))


class MachineCode:
    """Hashes and spills of the modules that were loaded while `loading` was entered, by the kernels in them.

    CUPTI's records of functions tell which kernels a module has. On an H200 there were none for what was
    loaded before kernels were recorded for the first time in a process, as the first kernel under test is, so
    an empty recording goes ahead of it; all 337 kernels of these suites were told then. By the symbols of a
    module some kernels of cuBLAS are not known.

    Args:
        trace: CUPTI of this process.
    """

    def __init__(self, trace: ActivityTrace) -> None:
        self._trace = trace
        self._cupti = trace.cupti
        self._function = trace.cupti.ActivityKind.FUNCTION
        trace.listeners[self._function] = self._take
        self._loaded = 0
        self._has_recorded = False
        self._own = True
        self._modules: dict[int, str] = {}
        self._kernels: dict[str, int] = {}
        self._others: set[int] = set()
        self._codes: dict[str, str] = {}
        self._images: dict[str, bytes] = {}
        self._spills: dict[str, dict[str, cubin.Spills | None]] = {}
        self.refused: str | None = None
        """Why modules that were loaded could not be looked at, the last time that was so."""

    @property
    def sha256(self) -> dict[str, str]:
        """Mangled name of a kernel → hash of the code that it came with, the latest of several.

        `code:` and what `cubin.code_sha256` says, or, of what is no cubin that can be read, `module:` and the
        hash of all of it.
        """
        return {
            name: self._code(self._modules[module])
            for name, module in self._kernels.items()
            if module in self._modules
        }

    def _code(self, module: str) -> str:
        """The hash of a module's code, by that of the module; it is read when it is first asked for."""
        if module not in self._codes:
            code = cubin.code_sha256(self._images.get(module, b""))
            self._codes[module] = f"module:{module}" if code is None else f"code:{code}"
        return self._codes[module]

    def spills(self, kernel: str) -> cubin.Spills | None:
        """What a kernel of this mangled name spills; None where it is not known, see `cubin.spills`.

        A module is read when it is first asked for, once however often it was loaded.
        """
        module = self._modules.get(self._kernels.get(kernel, -1))
        if module is None:
            return None
        self._code(module)  # while the image is there
        image = self._images.pop(module, None)
        if image is not None:
            self._spills[module] = cubin.spills(image)
        return self._spills.get(module, {}).get(kernel)

    @contextmanager
    def loading(self, *, own: bool = True) -> Iterator[None]:
        """While it is entered, modules that are loaded are hashed.

        Args:
            own: whether they are those of what is to be timed. Others, as what a corner loads, tell only of
                kernels that are not known: a library may have several of one name.

        Raises:
            TimerUnavailable: another profiler is attached, or the records cannot be had.
        """
        cupti, trace = self._cupti, self._trace
        if not self._has_recorded:
            trace.open(concurrently=True)
            trace.close()
            self._has_recorded = True
        self._own = own
        subscriber = trace.attempt(lambda: cupti.subscribe(self._called_back, None))
        try:
            domain, loaded = cupti.CallbackDomain.RESOURCE, cupti.CallbackIdResource.MODULE_LOADED
            trace.attempt(lambda: cupti.enable_callback(1, subscriber, domain, loaded))
            trace.attempt(lambda: cupti.activity_enable(self._function))
            before = self._loaded
            try:
                yield
            finally:
                try:
                    if self._loaded > before:
                        trace.attempt(lambda: cupti.activity_flush_all(1))
                finally:
                    trace.attempt(lambda: cupti.activity_disable(self._function))
        finally:
            trace.attempt(lambda: cupti.unsubscribe(subscriber))

    def _called_back(self, _user: Any, _domain: int, _callback: int, data: Any) -> None:
        module = _ModuleResource.from_address(int(data.resource_descriptor))
        if not (module.code and module.size):
            return
        code = ctypes.string_at(module.code, module.size)
        digest = hashlib.sha256(code).hexdigest()
        self._loaded += 1
        self._modules[module.module_id] = digest
        if not self._own:
            self._others.add(module.module_id)
        if digest not in self._spills:
            self._keep(digest, code)

    def _keep(self, digest: str, code: bytes) -> None:
        self._images[digest] = code
        while sum(map(len, self._images.values())) > MOST_KEPT_BYTES:
            oldest = next(iter(self._images))
            self._code(oldest)
            del self._images[oldest]

    def _take(self, record: Any) -> None:
        if record.module_id not in self._others or record.name not in self._kernels:
            self._kernels[record.name] = record.module_id


@functools.cache
def machine_code() -> MachineCode | None:
    """The one of this process; None where CUPTI cannot be used."""
    try:
        return MachineCode(activity_trace())
    except TimerUnavailable:
        return None


@contextmanager
def loading_observed(*, own: bool = True) -> Iterator[None]:
    """Has modules that are loaded meanwhile hashed, where CUPTI can be used; see `MachineCode.loading`."""
    found = machine_code()
    if found is None:
        yield
        return
    observing = found.loading(own=own)
    try:
        observing.__enter__()
    except TimerUnavailable as error:
        found.refused = str(error)
        yield
        return
    try:
        yield
    finally:
        try:
            observing.__exit__(None, None, None)
        except TimerUnavailable as error:  # what was loaded is known all the same
            found.refused = str(error)
