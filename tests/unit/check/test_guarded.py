"""Arrays of a test's own between guard zones, on the host."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_gpukern.backends.host import HostBackend
from pytest_gpukern.check.check_call import GuardedArrays


@pytest.fixture
def guarded():
    made = GuardedArrays({"host": HostBackend()}.__getitem__)
    yield made
    made.close()


def around(array):
    """The same memory with one element more before and behind."""
    start = array.__array_interface__["data"][0] - array.itemsize
    memory = {"data": (start, False), "shape": (array.size + 2,), "typestr": array.dtype.str, "version": 3}
    return np.asarray(type("Memory", (), {"__array_interface__": memory})())


@pytest.mark.parametrize("dtype", ["float32", "complex128", "u1", "?", "i2"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (0,), (2, 3, 4)])
def test_a_copy_has_the_contents_in_c_order_and_memory_of_its_own(guarded, shape, dtype):
    array = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    copy = guarded.make(array, None, copied=True)
    assert type(copy) is np.ndarray
    assert copy.dtype == array.dtype
    assert copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, array)
    assert not np.shares_memory(copy, array)
    assert not guarded.damage()


def test_one_that_is_written_holds_poison_and_other_zones(guarded):
    array = np.ones(5, "float32")
    written, copy = (guarded.make(array, None, copied=copied) for copied in (False, True))
    assert np.isnan(written).all()
    zones = [around(each).view("u4")[[0, -1]] for each in (written, copy)]
    assert not (zones[0] == zones[1]).any(), "what is read behind one and written behind the other is seen"
    written[...] = copy
    assert not guarded.damage()


class Masked(np.ndarray):
    """A class of somebody's."""


def tensor(dtype, **attributes):
    """What looks like one of PyTorch's."""
    attributes |= {"detach": lambda self: self, "view": lambda self, dtype: self, "dtype": dtype}
    return type("Tensor", (), {"__module__": "torch", **attributes})()


ON_DEVICE = {"data": (4096, False), "shape": (3,), "typestr": "<i2", "version": 3}


@pytest.mark.parametrize(
    "given",
    [
        *([1, 2], np.zeros(2).view(Masked), np.zeros(2, "U3"), np.float32(1), np.zeros(())),
        # tensors that have no workspace
        tensor("torch.float32", is_cuda=False, numpy=lambda self: np.zeros(3)),
        tensor("torch.bfloat16", is_cuda=True, __cuda_array_interface__=ON_DEVICE),
    ],
)
@pytest.mark.parametrize("copied", [True, False])
def test_what_cannot_be_made_so_is_refused_with_what_can(guarded, monkeypatch, copied, given):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(int16="int16"))
    told = r"of this dtype, shape or place cannot be guarded: give numbers in an array of NumPy"
    with pytest.raises(TypeError, match=told):
        guarded.make(given, None, copied=copied)
    assert not guarded.held
