"""What libraries say of their device memory; libraries and driver are stand-ins, arrays real objects."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from cuda.bindings import driver

from pytest_gpukern.gpu import memory_accounts
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.memory_accounts import Accounts

MIB = 2**20
POOL = driver.CUmemPool_attribute


def put(monkeypatch, name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def device(monkeypatch):
    """The driver: a device of 1 GiB with a pool; and no library that this process has imported."""
    for name in ("cupy", "torch", "numba.cuda", "pycuda.gpuarray"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pool = {
        POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT: 0,
        POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: 0,
        POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: 0,
    }
    found = SimpleNamespace(pool=pool, trimmed=[], has_pool=True)

    def checked(call, *arguments):
        if call == "cuDeviceGet":
            return arguments[0]
        if call == "cuDeviceGetDefaultMemPool":
            if not found.has_pool:
                raise cuda.CudaError("cuDeviceGetDefaultMemPool: CUDA_ERROR_NOT_SUPPORTED")
            return "pool"
        if call == "cuMemPoolGetAttribute":
            return pool[arguments[1]]
        if call == "cuMemPoolSetAttribute":
            assert int(arguments[2]) == 0, "a mark is set to what is now by writing 0"
            pool[arguments[1]] = pool[POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT]
            return None
        assert call == "cuMemPoolTrimTo"
        found.trimmed.append(arguments)
        return None

    monkeypatch.setattr(memory_accounts, "checked", checked)
    return found


@pytest.fixture
def accounts(device):
    runtime = SimpleNamespace(
        total_bytes=1024 * MIB, free_bytes=lambda: 600 * MIB, kept_bytes=100 * MIB, synchronize=lambda: None
    )
    return lambda: Accounts(runtime)


class CupyArray:
    def __init__(self, memory):
        self.data = SimpleNamespace(mem=memory)


class Unowned(SimpleNamespace):
    pass


def put_cupy(monkeypatch, used=0):
    log = []
    pool = SimpleNamespace(used_bytes=lambda: used, free_all_blocks=lambda: log.append("pool"))
    pinned = SimpleNamespace(free_all_blocks=lambda: log.append("pinned"))
    put(
        monkeypatch,
        "cupy",
        ndarray=CupyArray,
        cuda=SimpleNamespace(UnownedMemory=Unowned),
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pinned,
    )
    return log


def test_use_is_the_devices_less_what_this_plugin_keeps(accounts):
    assert accounts().used_bytes() == 324 * MIB


def test_only_libraries_that_are_there_are_asked(accounts, device, monkeypatch):
    assert accounts().live_bytes() == {"the driver's pool": 0}
    device.has_pool = False
    assert accounts().live_bytes() == {}
    put_cupy(monkeypatch, used=7)
    assert accounts().live_bytes() == {"cupy": 7}


def test_the_drivers_pool_tells_what_it_gave_out_and_held_and_gives_the_rest_back(accounts, device):
    found = accounts()
    device.pool.update(
        {
            POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT: 3,
            POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: 10,
            POOL.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: 64,
        }
    )
    assert (found.live_bytes(), found.high_bytes()) == ({"the driver's pool": 3}, 54)
    found.reset_high()
    assert found.high_bytes() == 0
    found.release()
    assert device.trimmed == [("pool", 0)]


def test_arrays_are_found_by_their_memory_and_views_of_one_are_one(accounts, monkeypatch):
    log = put_cupy(monkeypatch)
    found = accounts()
    memory = SimpleNamespace(ptr=4096, size=512)
    kept = [CupyArray(memory), CupyArray(memory), CupyArray(Unowned(ptr=8192, size=1024))]
    assert found.arrays() == {("cupy", 4096): 512}
    del kept
    assert found.arrays() == {}
    found.release()
    assert log == ["pool", "pinned"]


class Tensor:
    def __init__(self, pointer, nbytes, *, is_cuda=True, sparse=False):
        self.is_cuda, self._sparse = is_cuda, sparse
        self._storage = SimpleNamespace(data_ptr=lambda: pointer, nbytes=lambda: nbytes)

    def untyped_storage(self):
        if self._sparse:
            raise NotImplementedError("Cannot access storage of SparseTensorImpl")
        return self._storage


class Parameter(Tensor):
    pass


def test_tensors_count_by_their_storage_once_torch_uses_the_device(accounts, monkeypatch):
    state = {"initialised": False, "peak": 100}
    torch = SimpleNamespace(
        is_initialized=lambda: state["initialised"],
        memory_allocated=lambda: 40,
        memory_reserved=lambda: 60,
        max_memory_reserved=lambda: state["peak"],
        reset_peak_memory_stats=lambda: state.update(peak=60),
        empty_cache=lambda: state.update(emptied=True),
    )
    put(monkeypatch, "torch", Tensor=Tensor, cuda=torch)
    kept = [Tensor(1, 10), Parameter(2, 20), Tensor(3, 30, is_cuda=False), Tensor(4, 40, sparse=True)]
    found = accounts()
    assert (found.arrays(), found.live_bytes()) == ({}, {"the driver's pool": 0})
    state["initialised"] = True
    assert found.arrays() == {("torch", 1): 10, ("torch", 2): 20}
    assert (found.live_bytes()["torch"], found.high_bytes()) == (40, 40)
    found.reset_high()
    found.release()
    assert (found.high_bytes(), state["emptied"]) == (0, True)
    del kept


class Pointer(SimpleNamespace):
    @classmethod
    def to(cls, address, size):
        return cls(size=size, device_ctypes_pointer=SimpleNamespace(value=address))


class MappedMemory(Pointer):
    pass


class DeviceNDArray:
    def __init__(self, memory):
        self.gpu_data = memory


def test_numba_knows_each_allocation_and_mapped_host_memory_is_none(accounts, monkeypatch):
    cleared = []
    manager = SimpleNamespace(
        allocations={1: Pointer.to(1, 256), 2: MappedMemory.to(2, 512)},
        deallocations=SimpleNamespace(clear=lambda: cleared.append(True)),
    )
    works = [True]
    numba = {
        "devicearray": SimpleNamespace(DeviceNDArray=DeviceNDArray),
        "is_available": lambda: works[0],
        "current_context": lambda: SimpleNamespace(memory_manager=manager),
    }
    put(monkeypatch, "numba.cuda", **numba)
    kept = [DeviceNDArray(manager.allocations[1]), DeviceNDArray(manager.allocations[2]), DeviceNDArray(None)]
    found = accounts()
    assert (found.live_bytes()["numba"], found.arrays()) == (256, {("numba", 1): 256})
    found.release()
    assert cleared == [True]
    del manager.allocations, manager.deallocations  # a manager that somebody plugged in
    found.release()
    assert found.live_bytes()["numba"] is None
    works[0] = False
    assert "numba" not in found.live_bytes()
    del kept


class GPUArray:
    def __init__(self, gpudata, nbytes, base=None):
        self.gpudata, self.nbytes, self.base = gpudata, nbytes, base


def test_pycudas_arrays_are_seen_and_not_counted(accounts, monkeypatch):
    put(monkeypatch, "pycuda.gpuarray", GPUArray=GPUArray)
    whole = GPUArray(4096, 64)
    kept = [whole, GPUArray(4112, 32, base=whole)]
    assert accounts().arrays() == {("pycuda", 4096): 64}
    assert accounts().live_bytes()["pycuda"] is None
    del kept


def test_numbas_own_classes_have_what_is_asked_of_them():
    """Of the release that is installed: names that only a GPU would miss else."""
    source = pytest.importorskip("numba.cuda.cudadrv.driver")
    devicearray = pytest.importorskip("numba.cuda.cudadrv.devicearray")
    assert {"MappedMemory", "MappedOwnedPointer"} <= vars(source).keys()
    assert isinstance(source.MemoryPointer.device_ctypes_pointer, property)
    assert devicearray.DeviceNDArray.__mro__[1] is devicearray.DeviceNDArrayBase
    memory = source.MemoryPointer(None, 4096, 64)
    assert memory_accounts._on_device(memory)
    assert (memory.device_ctypes_pointer.value, memory.size) == (4096, 64)
