"""What the libraries of this process know of their device memory, and what the driver knows of the device's.

Only libraries that a test has imported are asked; none is imported here.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpukern.gpu.runtime import CudaError, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpukern.gpu.runtime import CudaRuntime

Arrays = dict[tuple[str, int], int]
"""(library, address) → bytes of each array that is alive; views of one allocation are one."""


class Account(Protocol):
    """One allocator.

    Attributes:
        name: of the library.
    """

    name: str

    def live_bytes(self) -> int | None:
        """Bytes that it has given out and that were not given back; None where it does not count."""

    def high_bytes(self) -> int:
        """What it has held at most beyond what it holds now, since `reset_high`; 0 if not told."""

    def reset_high(self) -> None:
        """Begins anew with that."""

    def release(self) -> None:
        """Gives back to the driver what it keeps for later."""

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:
        """Whether objects of a type are its arrays: then what gives address and bytes of one, or None for one
        whose memory is not its own."""


class _Plain:
    """An account that neither counts nor keeps anything."""

    def live_bytes(self) -> int | None:
        """Not counted."""
        return None

    def high_bytes(self) -> int:
        """Not told."""
        return 0

    def reset_high(self) -> None:
        """Nothing to reset."""

    def release(self) -> None:
        """Nothing is kept."""


class CupyAccount(_Plain):
    """CuPy's default memory pool."""

    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def live_bytes(self) -> int:
        """What the pool has given out."""
        return int(self._cupy.get_default_memory_pool().used_bytes())

    def release(self) -> None:
        """Empties the pools."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:
        """CuPy arrays; one over memory of another library is none of its own."""
        return self._place if issubclass(kind, self._cupy.ndarray) else None

    def _place(self, array: Any) -> tuple[int, int] | None:
        memory = array.data.mem
        if isinstance(memory, self._cupy.cuda.UnownedMemory):
            return None
        return int(memory.ptr), int(memory.size)


class TorchAccount(_Plain):
    """PyTorch's caching allocator; not asked before the test has initialised CUDA in it."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def live_bytes(self) -> int:
        """What the allocator has given out."""
        return int(self._torch.cuda.memory_allocated())

    def high_bytes(self) -> int:
        """By its own mark."""
        cuda = self._torch.cuda
        return max(0, int(cuda.max_memory_reserved()) - int(cuda.memory_reserved()))

    def reset_high(self) -> None:
        """Sets its marks to what is now."""
        self._torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        """Empties the caching allocator."""
        self._torch.cuda.empty_cache()

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:
        """Tensors on the device, by their storage."""
        return self._place if issubclass(kind, self._torch.Tensor) else None

    def _place(self, tensor: Any) -> tuple[int, int] | None:
        try:
            if not tensor.is_cuda:
                return None
            storage = tensor.untyped_storage()
            return int(storage.data_ptr()), int(storage.nbytes())
        except (NotImplementedError, RuntimeError):  # sparse, fake and functional tensors have no storage
            return None


class NumbaAccount(_Plain):
    """Numba's memory manager, which knows each allocation."""

    name = "numba"

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    @property
    def _manager(self) -> Any:
        return self._cuda.current_context().memory_manager

    def live_bytes(self) -> int | None:
        """Allocations that arrays still refer to; None of a manager that was plugged in."""
        allocations = getattr(self._manager, "allocations", None)  # a manager that somebody plugged in
        if allocations is None:
            return None
        return sum(int(memory.size) for memory in list(allocations.values()) if _on_device(memory))

    def release(self) -> None:
        """Frees what is held back for later."""
        deallocations = getattr(self._manager, "deallocations", None)
        if deallocations is not None:
            deallocations.clear()

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:
        """Device arrays."""
        return self._place if issubclass(kind, self._cuda.devicearray.DeviceNDArray) else None

    def _place(self, array: Any) -> tuple[int, int] | None:
        memory = getattr(array, "gpu_data", None)
        if memory is None or not _on_device(memory):
            return None
        return int(memory.device_ctypes_pointer.value or 0), int(memory.size)


def _on_device(memory: Any) -> bool:
    """Whether an allocation of Numba's is device memory, not a mapping of the host's."""
    return not any(kind.__name__ in ("MappedMemory", "MappedOwnedPointer") for kind in type(memory).__mro__)


class PycudaAccount(_Plain):
    """PyCUDA's arrays, which nobody counts: the device's use bounds what they can have kept."""

    name = "pycuda"

    def __init__(self, gpuarray: Any) -> None:
        self._gpuarray = gpuarray

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:
        """GPUArrays that are no views."""
        return _pycuda_place if issubclass(kind, self._gpuarray.GPUArray) else None


def _pycuda_place(array: Any) -> tuple[int, int] | None:
    if array.base is not None:  # a view, or over memory of another library
        return None
    return int(array.gpudata or 0), int(array.nbytes)


class PoolAccount(_Plain):
    """The driver's default memory pool: what cudaMallocAsync, by whatever library, has given out."""

    name = "the driver's pool"

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @classmethod
    def of(cls, ordinal: int) -> PoolAccount | None:
        """That of a device, or None where it has none."""
        try:
            found = cls(checked("cuDeviceGetDefaultMemPool", checked("cuDeviceGet", ordinal)))
            found.live_bytes()
        except CudaError:
            return None
        return found

    def live_bytes(self) -> int:
        """What it has given out."""
        return self._asked("USED_MEM_CURRENT")

    def high_bytes(self) -> int:
        """By the driver's own mark."""
        return max(0, self._asked("RESERVED_MEM_HIGH") - self._asked("RESERVED_MEM_CURRENT"))

    def reset_high(self) -> None:
        """Sets that mark to what is now."""
        from cuda.bindings import driver

        attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        checked("cuMemPoolSetAttribute", self._pool, attribute, driver.cuuint64_t(0))

    def release(self) -> None:
        """Gives back all that is not in use."""
        checked("cuMemPoolTrimTo", self._pool, 0)

    def owned(self, kind: type) -> Callable[[Any], tuple[int, int] | None] | None:  # noqa: ARG002
        """None: what it gives out belongs to arrays of other libraries."""
        return None

    def _asked(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
        return int(checked("cuMemPoolGetAttribute", self._pool, attribute))


class Accounts:
    """All allocators of this process, and the device's memory as the driver sees it.

    Use is that of the whole device, by whatever process: it also moves with modules that are loaded, handles
    and workspaces of libraries, local memory of kernels and buffers of CUPTI. What this plugin keeps for
    itself, copies of inputs and the buffer that flushes the L2, is taken off.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._pool = PoolAccount.of(0)

    def used_bytes(self) -> int:
        """In use on the device; raises CudaError where the context is lost."""
        return self._runtime.total_bytes - self._runtime.free_bytes() - self._runtime.kept_bytes

    def synchronize(self) -> None:
        """Waits for the device, since freeing may be queued; raises CudaError where the context is lost."""
        checked("cuCtxSynchronize")

    def live_bytes(self) -> dict[str, int | None]:
        """Library → bytes of what it has given out; None where it does not count."""
        return {account.name: account.live_bytes() for account in self._all()}

    def high_bytes(self) -> int:
        """What the libraries held at most beyond what they hold now, as far as they tell."""
        return sum(account.high_bytes() for account in self._all())

    def reset_high(self) -> None:
        """Begins anew with that."""
        for account in self._all():
            account.reset_high()

    def release(self) -> None:
        """Has every library give back what it keeps for later."""
        for account in self._all():
            account.release()

    def arrays(self) -> Arrays:
        """Every array that Python can see; takes a tenth of a second where many objects are alive."""
        accounts = self._all()
        known: dict[type, tuple[str, Callable[[Any], tuple[int, int] | None]] | None] = {}
        found: Arrays = {}
        for thing in gc.get_objects():
            kind = type(thing)
            if kind not in known:
                places = ((account.name, account.owned(kind)) for account in accounts)
                known[kind] = next(((name, place) for name, place in places if place is not None), None)
            owner = known[kind]
            place = owner[1](thing) if owner is not None else None
            if owner is not None and place is not None and place[1]:
                found[owner[0], place[0]] = place[1]
        return found

    def _all(self) -> list[Account]:
        """Those of the libraries that are in use."""
        found: list[Account] = [] if self._pool is None else [self._pool]
        if (cupy := _loaded("cupy", "ndarray")) is not None:
            found.append(CupyAccount(cupy))
        torch = _loaded("torch", "Tensor")
        if torch is not None and torch.cuda.is_initialized():
            found.append(TorchAccount(torch))
        numba = _loaded("numba.cuda", "devicearray")
        if numba is not None and numba.is_available():  # one that does not work here has allocated nothing
            found.append(NumbaAccount(numba))
        if (gpuarray := _loaded("pycuda.gpuarray", "GPUArray")) is not None:
            found.append(PycudaAccount(gpuarray))
        return found


def _loaded(name: str, needed: str) -> Any:
    """A module that was imported whole, or None."""
    module = sys.modules.get(name)
    return module if module is not None and hasattr(module, needed) else None
