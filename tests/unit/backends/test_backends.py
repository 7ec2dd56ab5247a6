"""Workspaces of the host, a device and the simulator, what is installed, and copies to the host."""

from __future__ import annotations

from functools import partial, partialmethod
from types import SimpleNamespace

import host_cuda
import numpy as np
import pytest

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.backends import numba
from pytest_gpukern.backends.foreign_array import refuse_what_proves_nothing, to_host
from pytest_gpukern.backends.gpu_backend import GpuBackend
from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.values import backend_table

INPUTS = {"a": np.arange(6.0).reshape(2, 3), "k": 3, "s": np.float32(2)}
OUTPUTS = {"out": Output((2, 3), "float32"), "flag": Output((), "int8")}


@pytest.fixture(params=["host", "device"])
def workspace(request, monkeypatch):
    if request.param == "host":
        return HostBackend().workspace(INPUTS, OUTPUTS)
    host_cuda.install(monkeypatch)
    monkeypatch.setattr(GpuBackend, "wrap", lambda _, array: host_cuda.contents_of(array))
    return GpuBackend().workspace(INPUTS, OUTPUTS)


# a workspace of the host, and of a device whose memory is the host's


def test_a_variant_gets_scalars_as_they_are_and_copies_of_arrays_which_new_contents_go_into(workspace):
    before = workspace.arrays["a"]
    assert np.array_equal(before, INPUTS["a"])
    assert not np.shares_memory(before, INPUTS["a"])
    assert workspace.arrays["k"] == 3
    assert workspace.arrays["s"] is INPUTS["s"]
    workspace.load({"a": INPUTS["a"] + 1, "k": 4, "s": np.float32(2)})
    assert workspace.arrays["a"] is before
    assert np.array_equal(before, INPUTS["a"] + 1)


def test_outputs_are_poisoned_when_made_and_when_told_to(workspace):
    def held():
        return set(workspace.arrays["out"].view("u4").ravel().tolist())

    assert held() == {POISONS[0]}
    for other in (POISONS[1], POISONS[0]):
        workspace.arrays["out"][...] = 0
        workspace.poison()
        assert held() == {other}, "the other one each time"
        workspace.arrays["out"][...] = 0
        workspace.queue_poison(None)
        assert held() == {other}, "the same once more"
        assert workspace.compare("out", np.zeros((2, 3)), Tolerance()).unwritten == 6


def test_an_input_that_changes_in_one_bit_has_another_digest(workspace):
    before = workspace.digest()
    assert set(before) == {"a"}
    assert workspace.digest() == before
    workspace.arrays["a"].view("u8")[1, 2] ^= 1
    assert workspace.digest() != before


def test_what_was_put_into_the_inputs_has_the_digest_that_they_have_then(workspace):
    inputs = {"a": INPUTS["a"].T, "k": 3, "s": INPUTS["s"]}
    made = HostBackend().workspace(inputs, {})
    assert made.digest_of(inputs) == made.digest() != workspace.digest()


def test_an_adopted_array_is_what_is_compared_and_fetched(workspace):
    workspace.arrays["out"][...] = 1
    own = workspace.bits("out")
    place = workspace.adopt("out", np.full((2, 3), 5, "float64").view(type(workspace.arrays["out"])))
    assert (place.shape, place.dtype, place.strides) == ((2, 3), np.dtype("float64"), None)
    assert workspace.fetch("out").tolist() == [[5] * 3] * 2
    adopted = workspace.bits("out")
    assert workspace.compare("out", np.full((2, 3), 5.0), Tolerance()).mismatches == 0
    assert adopted != own
    workspace.poison()
    assert workspace.bits("out") != adopted


class Subclass(np.ndarray):
    """Could do anything when it is compared."""


@pytest.mark.parametrize("value", [None, [1.0], 1.0, np.ones(6).view(Subclass), np.ma.zeros(3)])
def test_what_is_not_exactly_of_the_librarys_type_is_not_adopted(workspace, value):
    of_device = np.ones(6).view(type("Lazy", (host_cuda.OnDevice,), {}))
    assert workspace.adopt("out", value) is workspace.adopt("out", of_device) is None


def test_fetching_copies_into_the_array_given_or_a_new_one(workspace):
    workspace.arrays["out"][...] = 2
    into = np.empty((2, 3), "float32")
    assert workspace.fetch("out", into) is into
    copy = workspace.fetch("out")
    workspace.arrays["out"][...] = 3
    assert (copy == 2).all() and (into == 2).all()  # noqa: PT018


# what is installed


@pytest.mark.parametrize(
    ("module", "there"),
    [
        ("json", True),
        ("json.decoder", True),
        ("json.nonsense", False),
        ("nobody_has_this", False),
        ("nobody_has_this.part", False),
        ("sys", True),
        ("sys.part", False),
        ("", False),
    ],
)
def test_a_module_is_installed_if_it_can_be_found(module, there):
    assert backend_table.installed(module) is there


def test_looking_for_a_module_executes_nothing(tmp_path, monkeypatch):
    package = tmp_path / "never_run_this"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('executed')")
    (package / "part.py").write_text("raise AssertionError('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    assert backend_table.installed("never_run_this")
    assert backend_table.installed("never_run_this.part")
    assert not backend_table.installed("never_run_this.other")


@pytest.mark.parametrize(
    ("there", "compiles", "missing"),
    [
        ({"numba", "numba_cuda"}, False, None),
        ({"numba", "numba_cuda"}, True, None),
        ({"numba_cuda_mlir"}, False, None),  # which does for both where kernels are run
        ({"numba_cuda_mlir"}, True, "numba"),
        ({"numba"}, False, "numba-cuda"),  # though Numba has a target of its own
    ],
)
def test_a_missing_library_is_named_by_the_package_that_brings_it(monkeypatch, there, compiles, missing):
    finds = dict.fromkeys(there, SimpleNamespace(submodule_search_locations=None)).get
    monkeypatch.setattr(backend_table.importlib.util, "find_spec", finds)
    told = f"{missing} is not installed; pip install 'pytest-gpukern[cu13]'"
    assert backend_table.missing_library("numba", compiles=compiles) == (missing and told)


# copies to the host


class NumbaLike:
    def copy_to_host(self):
        return np.array([1.0, 2.0])


class CupyLike:
    def get(self):
        return np.array([1.0, 2.0])


class TorchLike:
    """A tensor that becomes an array only once it is detached, on the host, resolved and no bfloat16."""

    def __init__(self, dtype="torch.float32", done=()):
        self.dtype, self.done = dtype, done

    def _after(self, step):
        return TorchLike(self.dtype, (*self.done, step))

    detach, cpu, resolve_conj, resolve_neg = map(partial(partialmethod, _after), "abcd")

    def float(self):
        return TorchLike("torch.float32", self.done)

    def __array__(self, dtype=None, copy=None):
        assert self.dtype != "torch.bfloat16"
        assert self.done == (*"abcd",)
        return np.array([1.0, 2.0])


class DaskLike:
    def __dask_graph__(self):
        return {}

    def compute(self, scheduler):
        assert scheduler == "synchronous", "other threads have other streams"
        return CupyLike()


@pytest.mark.parametrize(
    "value",
    [
        NumbaLike(),
        CupyLike(),
        TorchLike(),
        TorchLike("torch.bfloat16"),
        DaskLike(),
        [1.0, 2.0],
        (1, 2),
        np.array([1, 2], "int8"),
    ],
)
def test_an_array_of_any_library_becomes_numpys(value):
    found = to_host(value)
    assert type(found) is np.ndarray
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("value", ["text", {"a": 1}, None, [object()], np.array(["a"])])
def test_what_holds_no_numbers_is_refused_by_its_type(value):
    with pytest.raises(TypeError, match=rf"{type(value).__name__} of dtype .* verify compares numbers only"):
        to_host(value)


# what proves nothing when it is compared

MEMORY = np.arange(12.0)


class OnDevice:
    """An array of some library on a device."""

    is_cuda = True

    def __init__(self, array):
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}


class Gradient(OnDevice):
    """A tensor of PyTorch's, which tells its address only once it is detached."""

    __module__ = "torch"

    def __init__(self, array):
        self.array = array

    def __getattr__(self, name):
        if name == "__cuda_array_interface__":
            raise RuntimeError("requires a gradient")
        raise AttributeError(name)

    def detach(self):
        return OnDevice(self.array)


NUMBERS = [1.0, 2.0]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (MEMORY, MEMORY),
        (MEMORY[2:], MEMORY[:3]),
        (MEMORY.reshape(3, 4).T, MEMORY.view("f4")),
        (OnDevice(MEMORY), OnDevice(MEMORY[::3])),
        (Gradient(MEMORY), OnDevice(MEMORY)),
        (OnDevice(MEMORY), MEMORY),
        ([MEMORY[:2], {"y": MEMORY[2:]}], (MEMORY.copy(), MEMORY[3:])),
        (NUMBERS, NUMBERS),
    ],
)
def test_an_array_is_not_compared_with_itself(actual, expected):
    for one, other in ((actual, expected), (expected, actual)):
        with pytest.raises(ValueError, match=r"(share memory|same object), so the comparison would always"):
            refuse_what_proves_nothing(one, other)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (MEMORY, MEMORY.copy()),
        (MEMORY[:6], MEMORY[6:]),
        (MEMORY[::2], MEMORY[1::2]),
        (MEMORY[:0], MEMORY),
        (OnDevice(MEMORY[:6]), OnDevice(MEMORY[6:])),
        (OnDevice(MEMORY), MEMORY.tolist()),
        (type("DeviceNDArray", (NumbaLike,), {"__module__": "numba.cuda"})(), 1.0),
        (np.float32(1), np.float32(1)),
        (MEMORY, MEMORY.copy().view(np.memmap)),  # an array in a file is a plain one
    ],
)
def test_what_has_memory_of_its_own_is_compared(actual, expected):
    refuse_what_proves_nothing(actual, expected)
    refuse_what_proves_nothing(expected, actual)


def test_what_is_not_computed_yet_is_no_output_and_may_be_a_reference():
    with pytest.raises(TypeError, match=r"actual is test_backends\.DaskLike, which computes when it is read"):
        refuse_what_proves_nothing(DaskLike(), MEMORY)
    refuse_what_proves_nothing(MEMORY, DaskLike())


@pytest.mark.parametrize("value", [np.ma.masked_array([1.0], [True]), np.zeros(1).view(Subclass)])
def test_a_subclass_of_numpys_array_is_compared_neither_way(value):
    with pytest.raises(TypeError, match=rf"actual is .*{type(value).__name__}, a subclass of numpy.ndarray"):
        refuse_what_proves_nothing(value, MEMORY)
    with pytest.raises(TypeError, match=r"expected is .* a subclass of numpy\.ndarray"):
        refuse_what_proves_nothing(MEMORY, value)


def test_a_stream_is_one_for_all_numbas_that_are_loaded_and_arrays_are_those_of_the_suites(monkeypatch):
    modules = {}
    for name in ("numba.cuda", "numba_cuda_mlir.cuda"):
        kind = type("Stream", (), {"__init__": lambda self, handle: setattr(self, "handle", handle)})
        modules[name] = SimpleNamespace(jit=None, external_stream=kind, as_cuda_array=(name,).__add__)
    monkeypatch.setattr(numba, "sys", SimpleNamespace(modules=modules))
    backend = object.__new__(numba.NumbaBackend)
    backend.timed_stream = SimpleNamespace(handle="7")
    assert backend.stream.handle == 7
    assert all(isinstance(backend.stream, module.external_stream) for module in modules.values())
    assert backend.wrap(("x",)) == ("numba_cuda_mlir.cuda", "x")
    del modules["numba_cuda_mlir.cuda"]
    assert backend.wrap(("x",)) == ("numba.cuda", "x")
