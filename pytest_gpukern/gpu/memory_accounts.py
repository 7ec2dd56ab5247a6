"""Asks the libraries of this process how much device memory they have given out, and poisons what is free.

We ask only libraries that a test has imported, and import none. PyCUDA keeps no account.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterator
from typing import Any

from pytest_gpukern.gpu.libcuda import CudaError, LibCuda
from pytest_gpukern.gpu.runtime import checked, fill_memory

_BLOCKS = 4
"""Free blocks that we poison for one array: a call may take some for arrays that it does not return."""
_ROUNDED = 512  # PyTorch makes each size a multiple of it


class Account:
    """One allocator; by default it caches nothing and reports no peak."""

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator

    def poison_free(self, sizes: Collection[int], word: int) -> None:
        """Fills what it may hand out next for arrays of these sizes, in bytes; raises if it cannot."""

    def live_bytes(self) -> int:
        """Returns the bytes given out and not yet given back."""
        raise NotImplementedError

    def peak_bytes(self) -> int:
        """Returns the largest `live_bytes` since `reset_peak`; 0 if unknown."""
        return 0

    def reset_peak(self) -> None:
        """Restarts `peak_bytes`."""

    def release(self) -> None:
        """Gives cached memory back to the driver."""


class _NoneFreeError(Exception):
    """Says that an allocator has no free block of a size, and would ask the driver."""


def _refuse(*_: Any, **__: Any) -> None:
    raise _NoneFreeError


class _Cupy(Account):
    """CuPy's default memory pool, without the FFT plans that CuPy caches."""

    def poison_free(self, sizes: Collection[int], word: int) -> None:
        """Takes blocks of the current stream's that are free now, and gives them back in reverse order."""
        cupy, blocks = self._allocator, list[Any]()
        if cupy.cuda.get_allocator() != cupy.get_default_memory_pool().malloc:
            raise RuntimeError("its allocator is not its default pool")
        refusing = type("Refusing", (cupy.cuda.MemoryHook,), {"name": "gpukern", "alloc_preprocess": _refuse})
        for nbytes in sizes:
            with contextlib.suppress(_NoneFreeError), refusing():
                for _ in range(_BLOCKS):
                    blocks.append(cupy.get_default_memory_pool().malloc(nbytes))
                    fill_memory(blocks[-1].ptr, nbytes, word)
            while blocks:
                blocks.pop()

    def live_bytes(self) -> int:
        plans = sys.modules.get("cupy.fft._cache")
        cached = int(plans.get_plan_cache().get_curr_memsize()) if plans is not None else 0
        return max(0, int(self._allocator.get_default_memory_pool().used_bytes()) - cached)

    def release(self) -> None:
        self._allocator.get_default_memory_pool().free_all_blocks()
        self._allocator.get_default_pinned_memory_pool().free_all_blocks()


class _Torch(Account):
    """PyTorch's caching allocator, once the test has initialised CUDA in PyTorch."""

    def poison_free(self, sizes: Collection[int], word: int) -> None:
        """Writes where its snapshot says that blocks are free, whatever their stream; it allocates nothing.

        Blocks of private pools are left alone: a captured graph may read and write them.
        """
        torch, free = self._allocator, dict[tuple[int, str], list[tuple[int, int]]]()
        if torch.cuda.get_allocator_backend() != "native":
            raise RuntimeError(f"its allocator is {torch.cuda.get_allocator_backend()}")
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != torch.cuda.current_device() or any(segment["segment_pool_id"]):
                continue
            blocks = free.setdefault((segment["stream"], segment["segment_type"]), [])
            inactive = (block for block in segment["blocks"] if block["state"] == "inactive")
            blocks += [(block["size"], block["address"]) for block in inactive]
        for nbytes, blocks in itertools.product(sizes, free.values()):
            # The smallest that fits is handed out first, from its beginning.
            for size, address in sorted(block for block in blocks if block[0] >= nbytes)[:_BLOCKS]:
                fill_memory(address, min(size, _BLOCKS * (nbytes + _ROUNDED)), word)

    def live_bytes(self) -> int:
        return int(self._allocator.cuda.memory_allocated())

    def peak_bytes(self) -> int:
        return int(self._allocator.cuda.max_memory_allocated())

    def reset_peak(self) -> None:
        self._allocator.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        """Empties the caching allocator, after freeing PyTorch's workspaces for cuBLAS in it."""
        clear = getattr(self._allocator._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        self._allocator.cuda.empty_cache()


class _Numba(Account):
    """Numba's own memory manager, which knows each allocation; for any other one we count nothing."""

    def live_bytes(self) -> int:
        allocations = getattr(self._allocator, "allocations", None) or {}
        return sum(int(memory.size) for memory in list(allocations.values()) if _on_device(memory))

    def release(self) -> None:
        deallocations = getattr(self._allocator, "deallocations", None)
        if deallocations is not None:
            deallocations.clear()


def _on_device(memory: Any) -> bool:
    """Says whether a Numba allocation is device memory, not mapped host memory."""
    return not any(kind.__name__ in ("MappedMemory", "MappedOwnedPointer") for kind in type(memory).__mro__)


class _Pool(Account):
    """The driver's default memory pool: what cudaMallocAsync has given out, to any library."""

    def live_bytes(self) -> int:
        return self._bytes_of("USED_MEM_CURRENT")

    def peak_bytes(self) -> int:
        return self._bytes_of("USED_MEM_HIGH")

    def reset_peak(self) -> None:
        from cuda.bindings import driver

        attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH
        checked("cuMemPoolSetAttribute", self._allocator, attribute, driver.cuuint64_t(0))

    def release(self) -> None:
        checked("cuMemPoolTrimTo", self._allocator, 0)

    def _bytes_of(self, name: str) -> int:
        from cuda.bindings import driver

        attribute = getattr(driver.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
        return int(checked("cuMemPoolGetAttribute", self._allocator, attribute))


def poison_free(sizes: Collection[int], word: int) -> Iterator[str]:
    """Poisons what libraries may hand out next for arrays of these sizes, in bytes; the device is idle.

    A right answer may lie there, such as a reference that was freed. Yields why a library's was not poisoned.
    """
    for account in accounts() if sizes else ():
        try:
            account.poison_free(sizes, word)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the call can be checked
            library, why = type(account).__name__[1:], " ".join(str(error).split())
            yield f"what {library} holds free was not poisoned: {why}"


def accounts() -> list[Account]:
    """Returns the accounts of the libraries in use, and of the driver's pool; none without a context."""
    in_use: list[Account] = []
    if not LibCuda().has_context():  # nothing is allocated yet, and the driver refuses to be asked
        return in_use
    with contextlib.suppress(CudaError):  # the pinned device has no pool
        pool = _Pool(checked("cuDeviceGetDefaultMemPool", checked("cuDeviceGet", 0)))
        pool.live_bytes()
        in_use.append(pool)
    if (cupy := _loaded("cupy", "ndarray")) is not None:
        in_use.append(_Cupy(cupy))
    torch = _loaded("torch", "Tensor")
    if torch is not None and torch.cuda.is_initialized():
        in_use.append(_Torch(torch))
    for name in ("numba.cuda", "numba_cuda_mlir.cuda"):
        numba = _loaded(name, "devicearray")
        if numba is not None and numba.is_available():  # else it has allocated nothing
            in_use.append(_Numba(numba.current_context().memory_manager))
    return in_use


def _loaded(name: str, needed: str) -> Any:
    """Returns a module that is completely imported, or None."""
    module = sys.modules.get(name)
    return module if module is not None and hasattr(module, needed) else None
