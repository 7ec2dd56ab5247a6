"""Hashes the machine code that libraries load into the device, in CUPTI's callback for each module.

Every library loads its modules through the driver, so one place serves them all. We keep a module's SHA-256:
the same hash before and after a driver upgrade means that the compiler did not change the kernel, and another
hash that it did. We keep the code itself until somebody asks for one of its kernels.

Python of ours runs when a module is loaded. For launches it runs in one call only, which nobody times: two
callbacks of 6 µs a launch spoil the times that an autotuner takes. With them, some were five times too
long in 18 of 24 runs; without, none in 104 (de2f592, H200, driver 580.159.04, 2026-11-23).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from pytest_gpukern.arrays.memory import Span
from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.kernel_facts import triton_cubins
from pytest_gpukern.timers.cupti.activity import ActivityTrace, activity_trace
from pytest_gpukern.timers.cupti.launch_arguments import Arguments, arguments_of
from pytest_gpukern.timers.timer import TimerUnavailable
from pytest_gpukern.values.garbage import gc_paused

MOST_KEPT_BYTES = 256 << 20
"""Most bytes of modules that nobody has asked about yet. Of older ones we keep facts, and not the code."""

_MOST_ARGUMENTS = 1024  # launches whose arguments we read: the order of more than 256 in a call is not known

_FEWEST_REGISTERS = 16
"""Fewest registers in a launch's record: 14 were recorded as 16 (H200, CUDA 13.0)."""


class _ModuleResource(ctypes.Structure):
    """CUpti_ModuleResourceData; cupti-python wrongly turns the code into text."""

    _fields_ = (("module_id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("code", ctypes.c_void_p))


class _ApiCall(ctypes.Structure):
    """The beginning of CUpti_CallbackData; cupti-python hides the parameters of the call."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("returned", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
    )


_PLACE_OF_HANDLE = {
    f"{call}{stream}": place
    for call, place in (("cuLaunchKernel", 0), ("cuLaunchCooperativeKernel", 0), ("cuLaunchKernelEx", 1))
    for stream in ("", "_ptsz")
}
"""Driver calls that launch a kernel → the position of its handle among their eight-byte parameters."""


class MachineCode:
    """Hashes of the modules loaded while `loading` or `launches` was entered, by the kernels in them.

    CUPTI's function records say which kernels a module has. On an H200 there were none for modules loaded
    before the first recording of a process, such as the first kernel's module. So we make an empty
    recording first; then all 337 kernels of these suites were found. A module's symbols would not do: they
    lack some kernels of cuBLAS.

    If several modules have a kernel of one name, `KernelModules`, Triton or the launch's registers tell from
    which it was launched. If none does and the codes differ, we report no hash.
    """

    def __init__(self, trace: ActivityTrace) -> None:
        self._trace = trace
        self._cupti = cupti = trace.cupti
        self._function = cupti.ActivityKind.FUNCTION
        trace.listeners[self._function] = lambda record: self._from.has(record.module_id, record.name)
        calls = cupti.driver_api_trace_cbid.__members__
        self._calls = {int(calls[name]): name for name in _PLACE_OF_HANDLE if name in calls}
        self._loaded = 0
        self._has_recorded = False
        self._from = KernelModules()
        self._launches: dict[tuple[str, int], None] = {}
        self._arguments: list[tuple[str, Arguments | None]] = []
        self._modules: dict[int, str] = {}
        self._known: dict[str, _CodeFacts] = {}
        self._images: dict[str, bytes] = {}
        self.refused: str | None = None
        """Why loaded modules could not be read, the last time that this happened."""

    def sha256(self, kernel: str, registers: int) -> str | None:
        """Returns the hash of a kernel's code; None if unknown.

        The hash is `code:` and `cubin.code_sha256`, or `module:` and the hash of the whole module if it is
        not a cubin that we can read. For a call that launches from several modules, it is the hash of their
        hashes.

        Args:
            kernel: mangled name.
            registers: registers a thread, as recorded at the launch.
        """
        modules, from_all = self._modules_of(kernel)
        codes = sorted({module.code for module in modules if module.may_take(registers, kernel)})
        if len(codes) > 1 and from_all:
            method = "module" if any(code.startswith("module:") for code in codes) else "code"
            return f"{method}:{hashlib.sha256(' '.join(codes).encode()).hexdigest()}"
        return codes[0] if len(codes) == 1 else None

    def scalars(self, kernels: Sequence[str], arrays: Sequence[tuple[str, Span]]) -> str | None:
        """Returns a hash of the arguments of a call that was observed in `launches`, perhaps several times.

        An address counts by its place in an array. Returns None where observations differ, and where it is
        not known what the kernels read: memory that is none of the arrays, or a variable of their module.

        Args:
            kernels: mangled names of what the call launches, in order.
            arrays: names and addresses of the arrays of the call, in each of its observations.
        """
        launches = [launch for launch in self._arguments if launch[0] in kernels]
        calls = range(0, len(launches), max(1, len(kernels)))
        found = {_described(launches[at : at + len(kernels)], kernels, arrays) for at in calls}
        described = found.pop() if len(found) == 1 else None
        if described is None or any(map(self._may_read_variables, {*kernels})):  # which may search for 22 ms
            return None
        return described

    def _may_read_variables(self, kernel: str) -> bool:
        modules, _ = self._modules_of(kernel)
        return not modules or any(module.has_variables for module in modules)

    def launches_from_device(self, kernel: str) -> bool:
        """Returns whether a kernel, by its mangled name, may be in a module that launches from the device.

        Registers rule no module out: a kernel that calls functions takes more than its own code says.
        """
        return any(self._read(module).launches for module in self._loaded_with(self._from.of(kernel)))

    def any_launches_from_device(self) -> bool:
        """Returns whether any module that we saw being loaded launches from the device."""
        return any(self._read(module).launches for module in {*self._modules.values()})

    def _modules_of(self, kernel: str) -> tuple[list[_CodeFacts], bool]:
        """Returns the modules that a kernel may be from, and whether a call launched it from all of them."""
        origin = self._from.of(kernel)
        modules = [self._read(module) for module in self._loaded_with(origin)]
        if len(modules) != 1 and (held := self._held_by_triton(kernel)):
            return held, True
        return modules, origin.from_all

    def _held_by_triton(self, kernel: str) -> list[_CodeFacts]:
        """Returns facts of the code that Triton has for a kernel's handles; nothing if it lacks one of them.

        Only Triton tells to which code a handle belongs. We look when somebody asks, and not in `launches`,
        around which `warm_up` takes times: a search of 170 000 objects took 22 ms.
        """
        handles = [handle for name, handle in self._launches if name == kernel]
        cubins = triton_cubins() if handles else {}
        images = [cubins[handle] for handle in handles if handle in cubins]
        if len(images) < len(handles):
            return []
        return [_CodeFacts.of(image, hashlib.sha256(image).hexdigest()) for image in images]

    def _loaded_with(self, origin: Origin) -> set[str]:
        """Returns the hashes of an origin's modules, as far as we saw them being loaded."""
        return {self._modules[number] for number in origin.modules if number in self._modules}

    def _read(self, module: str) -> _CodeFacts:
        """Returns the facts of a module's code by its hash, reading it on first use."""
        if module not in self._known:
            self._known[module] = _CodeFacts.of(self._images.pop(module, b""), module)
        return self._known[module]

    @contextmanager
    def loading(self, *, begins: bool = False) -> Iterator[None]:
        """Hashes the modules that are loaded while entered.

        Args:
            begins: whether a test begins; what the last one launched is forgotten.

        Raises:
            TimerUnavailable: another profiler is attached, or CUPTI delivers no records.
        """
        if begins:
            self._from.begin()
            self._launches.clear()
        with self._called_back_at():
            yield

    @contextmanager
    def launches(self) -> Iterator[None]:
        """Hashes the modules that are loaded while entered, and finds the modules of launched kernels.

        It also keeps the arguments of each launch.
        """
        self._launches.clear()
        self._arguments.clear()
        with self._called_back_at(*self._calls):
            yield
        for kernel in self._from.launched(self._launches):  # so that nothing is read during timing
            for module in self._loaded_with(self._from.of(kernel)):
                self._read(module)

    @contextmanager
    def _called_back_at(self, *calls: int) -> Iterator[None]:
        """Has CUPTI call us back for modules that are loaded, and for these calls of the driver."""
        cupti, trace = self._cupti, self._trace
        if not self._has_recorded:
            trace.open(concurrently=True)
            trace.close()
            self._has_recorded = True
        loaded = (cupti.CallbackDomain.RESOURCE, cupti.CallbackIdResource.MODULE_LOADED)
        events = [loaded, *((cupti.CallbackDomain.DRIVER_API, call) for call in calls)]
        subscriber = trace.attempt(cupti.subscribe, self._called_back, None)
        try:
            for event in events:
                trace.attempt(cupti.enable_callback, 1, subscriber, *event)
            trace.attempt(cupti.activity_enable, self._function)
            before = self._loaded
            try:
                yield
            finally:
                with gc_paused():  # the thread that reads records cannot free PyCUDA's arrays
                    try:
                        if self._loaded > before:
                            trace.attempt(cupti.activity_flush_all, 1)
                    finally:
                        trace.attempt(cupti.activity_disable, self._function)
        finally:
            trace.attempt(cupti.unsubscribe, subscriber)

    def _called_back(self, _user: Any, domain: int, callback: int, data: Any) -> None:
        if domain == self._cupti.CallbackDomain.DRIVER_API:
            call = _ApiCall.from_address(int(data.ptr))
            # At the return, since lazy loading loads the module inside the first launch.
            if call.site == self._cupti.ApiCallbackSite.API_EXIT and call.kernel and call.parameters:
                kernel, name = call.kernel.decode(), self._calls[callback]
                handle = ctypes.c_uint64.from_address(call.parameters + 8 * _PLACE_OF_HANDLE[name]).value
                self._launches[kernel, handle] = None
                if len(self._arguments) < _MOST_ARGUMENTS:
                    arguments = arguments_of(name.removesuffix("_ptsz"), call.parameters, handle)
                    self._arguments.append((kernel, arguments))
            return
        module = _ModuleResource.from_address(int(data.resource_descriptor))
        if not (module.code and module.size):
            return
        code = ctypes.string_at(module.code, module.size)
        digest = hashlib.sha256(code).hexdigest()
        self._loaded += 1
        self._modules[module.module_id] = digest
        if digest not in self._known:
            self._images[digest] = code
            while sum(map(len, self._images.values())) > MOST_KEPT_BYTES:
                self._read(next(iter(self._images)))  # the oldest


class _CodeFacts(NamedTuple):
    """Holds facts of a module's code: its hash, its kernels' registers, and whether one launches others."""

    code: str
    registers: Mapping[str, int]
    launches: bool
    has_variables: bool

    @classmethod
    def of(cls, image: bytes, sha256: str) -> _CodeFacts:
        code = cubin.code_sha256(image)
        return cls(
            f"module:{sha256}" if code is None else f"code:{code}",
            cubin.registers(image),
            cubin.launches_from_device(image),
            cubin.has_variables(image),
        )

    def may_take(self, recorded: int, kernel: str) -> bool:
        """Returns whether a launch of this module's kernel may be recorded with so many registers."""
        registers = self.registers.get(kernel)
        return registers is None or recorded == max(registers, _FEWEST_REGISTERS)


def _described(
    call: Sequence[tuple[str, Arguments | None]],
    kernels: Sequence[str],
    arrays: Sequence[tuple[str, Span]],
) -> str | None:
    """Returns a hash of a call's arguments, the same wherever arrays lie; None where one is not known."""

    def placed(part: bytes | int) -> object:
        if isinstance(part, bytes):
            return part
        return next(
            ((name, part - span.start) for name, span in arrays if span.start <= part < span.stop), None
        )

    parts = [[*map(placed, arguments)] if arguments is not None else [None] for _, arguments in call]
    known = [name for name, _ in call] == [*kernels] and all(None not in part for part in parts)
    return hashlib.sha256(repr(parts).encode()).hexdigest() if known else None


@functools.cache
def machine_code() -> MachineCode | None:
    """Returns the machine code of this process; None if CUPTI cannot be used."""
    try:
        return MachineCode(activity_trace())
    except TimerUnavailable:
        return None


@contextmanager
def observed(observation: Callable[[MachineCode], AbstractContextManager[None]]) -> Iterator[None]:
    """Enters `MachineCode.loading` or `MachineCode.launches`, if CUPTI can be used."""
    code = machine_code()
    if code is None:
        yield
        return
    observing = observation(code)
    try:
        observing.__enter__()
    except TimerUnavailable as error:
        code.refused = str(error)
        yield
        return
    try:
        yield
    finally:
        try:
            observing.__exit__(None, None, None)
        except TimerUnavailable as error:  # modules loaded before are known all the same
            code.refused = str(error)


class Origin(NamedTuple):
    """Holds numbers of modules; a kernel was launched `from_all` of them, or else from at least one."""

    modules: frozenset[int]
    from_all: bool


class KernelModules:
    """Finds the module that a launch took its kernel from, if several modules have a kernel of that name.

    CUPTI's records and baselines only have kernel names, and these are not unique: CuPy compiles an
    elementwise kernel anew for small and for large arrays, an autotuner compiles one for each of its
    configurations, and a user has an `add` in two test files. A launch also has the kernel's handle, but
    nothing says to which module a handle belongs. So a new handle belongs to the only module that has none
    yet. If there are several, we do not know: then only the codes' registers may tell.
    """

    def __init__(self) -> None:
        self._with: defaultdict[str, set[int]] = defaultdict(set)
        self._of_handle: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._new: set[int] | None = set()
        self._launched: dict[str, Origin] = {}

    def has(self, module: int, kernel: str) -> None:
        """Notes that a module, which was just loaded, has a kernel of this mangled name."""
        self._with[kernel].add(module)
        if self._new is not None:
            self._new.add(module)

    def begin(self) -> None:
        """Begins a test: forgets what was launched; the modules of handles stay known."""
        self._launched.clear()
        self._new = set()

    def launched(self, launches: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Finds the modules of kernels that one call launched, by mangled name and handle; returns the names.

        `of` then answers for this call.
        """
        self._launched.clear()
        launches = tuple(launches)
        for kernel, handle in launches:
            unseen = self._without_handle(kernel)
            if handle not in self._of_handle[kernel] and len(unseen) == 1:
                (self._of_handle[kernel][handle],) = unseen
        for kernel, handle in launches:
            # The driver gives an unloaded module's handle to a new one, and nothing tells us of that.
            if (self._new or set()) & self._without_handle(kernel):
                self._of_handle[kernel].pop(handle, None)
        self._new = None  # what the test loads from now on has other handles than what it has just launched
        for kernel, handle in launches:
            module = self._of_handle[kernel].get(handle)
            so_far = self._launched.get(kernel, Origin(frozenset(), from_all=True))
            if module is None or not so_far.from_all:
                self._launched[kernel] = self._any(kernel)
            else:
                self._launched[kernel] = Origin(so_far.modules | {module}, from_all=True)
        return tuple(self._launched)

    def of(self, kernel: str) -> Origin:
        """Returns a kernel's modules in the last call of which `launched` was told.

        If it was not launched then, it may be from any module that has a kernel of this mangled name.
        """
        return self._launched.get(kernel) or self._any(kernel)

    def _without_handle(self, kernel: str) -> set[int]:
        return self._with[kernel] - set(self._of_handle[kernel].values())

    def _any(self, kernel: str) -> Origin:
        return Origin(frozenset(self._with[kernel]), from_all=False)
