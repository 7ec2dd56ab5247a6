"""Tests what libraries report of their device memory; libraries and driver are fakes, arrays real objects."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from cuda.bindings import driver
from host_cuda import put_module

from pytest_gpukern.gpu import memory_accounts
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.memory_accounts import accounts

POOL = driver.CUmemPool_attribute


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """The driver, with a pool; and no library that this process has imported."""
    for name in ("cupy", "cupy.fft._cache", "torch", "numba.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pool = {POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT: 3, POOL.CU_MEMPOOL_ATTR_USED_MEM_HIGH: 54}
    found = SimpleNamespace(pool=pool, trimmed=[], has_pool=True, has_context=True)
    monkeypatch.setattr(memory_accounts.LibCuda, "has_context", lambda self: found.has_context)

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
            pool[arguments[1]] = pool[POOL.CU_MEMPOOL_ATTR_USED_MEM_CURRENT]
            return None
        assert call == "cuMemPoolTrimTo"
        found.trimmed.append(arguments)
        return None

    monkeypatch.setattr(memory_accounts, "checked", checked)
    return found


@pytest.fixture
def only(device):
    """The account of the one library that was imported."""

    def account():
        device.has_pool = False
        (found,) = accounts()
        return found

    return account


def test_the_drivers_pool_tells_what_it_gave_out_now_and_at_most_and_gives_the_rest_back(device):
    (pool,) = accounts()
    assert (pool.live_bytes(), pool.peak_bytes()) == (3, 54)
    pool.reset_peak()
    assert pool.peak_bytes() == 3
    pool.release()
    assert device.trimmed == [("pool", 0)]


@pytest.mark.parametrize("missing", ["has_pool", "has_context"])
def test_without_a_pool_or_a_context_nothing_is_asked_nor_libraries_that_are_not_there(device, missing):
    setattr(device, missing, False)
    assert accounts() == []


def test_cupys_pool_counts_without_its_cached_fft_plans(only, monkeypatch):
    log = []
    pool = SimpleNamespace(used_bytes=lambda: 700, free_all_blocks=lambda: log.append("pool"))
    pinned = SimpleNamespace(free_all_blocks=lambda: log.append("pinned"))
    pools = {"get_default_memory_pool": lambda: pool, "get_default_pinned_memory_pool": lambda: pinned}
    put_module(monkeypatch, "cupy", ndarray=object, **pools)
    assert only().live_bytes() == 700
    plans = SimpleNamespace(get_curr_memsize=lambda: 200)
    put_module(monkeypatch, "cupy.fft._cache", get_plan_cache=lambda: plans)
    assert only().live_bytes() == 500
    only().release()
    assert log == ["pool", "pinned"]


def test_torch_counts_once_it_uses_the_device_and_gives_back_what_it_keeps_for_cublas(
    only, device, monkeypatch
):
    state, log = {"initialised": False, "peak": 100}, []
    torch = SimpleNamespace(
        is_initialized=lambda: state["initialised"],
        memory_allocated=lambda: 40,
        max_memory_allocated=lambda: state["peak"],
        reset_peak_memory_stats=lambda: state.update(peak=40),
        empty_cache=lambda: log.append("cache"),
    )
    inner = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: log.append("workspaces"))
    put_module(monkeypatch, "torch", Tensor=object, cuda=torch, _C=inner)
    assert len(accounts()) == 1, "the driver's pool"
    state["initialised"] = True
    assert (only().live_bytes(), only().peak_bytes()) == (40, 100)
    only().reset_peak()
    only().release()
    assert (only().peak_bytes(), log) == (40, ["workspaces", "cache"])


# what allocators hold free


@pytest.fixture
def filled(monkeypatch):
    """Address → bytes filled there."""
    places = {}
    monkeypatch.setattr(memory_accounts, "fill_memory", lambda at, nbytes, word: places.update({at: nbytes}))
    return places


def torch_holding(monkeypatch, *segments, backend="native"):
    """PyTorch with segments of blocks of (address, bytes, state), and how each is another than usual."""
    usual = {"stream": 0, "segment_pool_id": (0, 0), "device": 0, "segment_type": "large"}
    names = ("address", "size", "state")
    snapshot = [
        {**usual, **other, "blocks": [dict(zip(names, block, strict=True)) for block in blocks]}
        for blocks, other in segments
    ]
    asked = {"is_initialized": True, "memory_snapshot": snapshot, "current_device": 0}
    asked["get_allocator_backend"] = backend
    cuda = SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in asked.items()})
    put_module(monkeypatch, "torch", Tensor=object, cuda=cuda)


FREE = "inactive"


def test_the_smallest_free_blocks_of_torch_that_fit_are_poisoned_and_nothing_that_is_in_use(
    device, filled, monkeypatch
):
    many = [(100 + number, 5000 + number, FREE) for number in range(6)]
    torch_holding(
        monkeypatch,
        ([(1, 4096, FREE), (2, 4096, "active_allocated"), (3, 4096, "active_pending_free")], {}),
        ([(4, 4095, FREE), (5, 10**6, FREE)], {}),
        ([(6, 4096, FREE)], {"segment_pool_id": (0, 7)}),  # of a captured graph
        ([(7, 4096, FREE)], {"device": 1}),
        (many, {"stream": 9}),
    )
    assert list(memory_accounts.poison_free({4096}, 1)) == []
    assert filled == {1: 4096, 5: 4 * (4096 + 512)} | {at: size for at, size, _ in many[:4]}


def test_what_cannot_be_poisoned_is_said_and_nothing_is_asked_for_no_size(device, filled, monkeypatch):
    torch_holding(monkeypatch, backend="cudaMallocAsync")
    reasons = ["what Torch holds free was not poisoned: its allocator is cudaMallocAsync"]
    assert list(memory_accounts.poison_free({4096}, 1)) == reasons
    assert list(memory_accounts.poison_free((), 1)) == []
    assert not filled


class Pool:
    """A pool with free blocks of one size, which asks the driver when these are gone."""

    def __init__(self, free):
        self.free, self.hooks = free, []

    def malloc(self, nbytes):
        if not self.free:
            for hook in self.hooks:
                hook.alloc_preprocess(device_id=0, mem_size=nbytes)
            raise AssertionError("it grew")
        return Block(self, self.free.pop())

    def used_bytes(self):
        return 0


class Block:
    def __init__(self, pool, ptr):
        self.pool, self.ptr = pool, ptr

    def __del__(self):
        self.pool.free.append(self.ptr)


@pytest.mark.parametrize(("free", "poisoned"), [([], []), ([1, 2], [2, 1]), ([*range(9)], [8, 7, 6, 5])])
def test_free_blocks_of_cupys_pool_are_poisoned_and_given_back_as_they_lay(
    device, filled, monkeypatch, free, poisoned
):
    pool = Pool([*free])

    class Hook:
        def __enter__(self):
            pool.hooks.append(self)

        def __exit__(self, *exc):
            pool.hooks.remove(self)

    cuda = SimpleNamespace(MemoryHook=Hook, get_allocator=lambda: pool.malloc)
    put_module(monkeypatch, "cupy", ndarray=object, cuda=cuda, get_default_memory_pool=lambda: pool)
    assert list(memory_accounts.poison_free([64], 1)) == []
    assert [*filled] == poisoned
    assert (pool.free, pool.hooks) == (free, [])
    cuda.get_allocator = lambda: print
    (reason,) = memory_accounts.poison_free([64], 1)
    assert reason == "what Cupy holds free was not poisoned: its allocator is not its default pool"


class Pointer(SimpleNamespace):
    pass


class MappedMemory(Pointer):
    pass


def test_numba_knows_each_allocation_and_mapped_host_memory_is_none(only, monkeypatch):
    cleared = []
    manager = SimpleNamespace(
        allocations={1: Pointer(size=256), 2: MappedMemory(size=512)},
        deallocations=SimpleNamespace(clear=lambda: cleared.append(True)),
    )
    works = [True]
    numba = {
        "devicearray": None,
        "is_available": lambda: works[0],
        "current_context": lambda: SimpleNamespace(memory_manager=manager),
    }
    put_module(monkeypatch, "numba.cuda", **numba)
    assert only().live_bytes() == 256
    only().release()
    assert cleared == [True]
    del manager.allocations, manager.deallocations  # a manager that somebody plugged in
    only().release()
    assert only().live_bytes() == 0
    works[0] = False
    assert accounts() == []


def test_numbas_own_classes_have_what_is_asked_of_them():
    """Checks the installed release; otherwise only a GPU would miss these names."""
    source = pytest.importorskip("numba.cuda.cudadrv.driver")
    devicearray = pytest.importorskip("numba.cuda.cudadrv.devicearray")
    assert {"MappedMemory", "MappedOwnedPointer"} <= vars(source).keys()
    assert isinstance(source.MemoryPointer.device_ctypes_pointer, property)
    assert devicearray.DeviceNDArray.__mro__[1] is devicearray.DeviceNDArrayBase
    memory = source.MemoryPointer(None, 4096, 64)
    assert memory_accounts._on_device(memory)
    assert (memory.device_ctypes_pointer.value, memory.size) == (4096, 64)
