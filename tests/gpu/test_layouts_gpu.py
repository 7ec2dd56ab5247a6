"""Tests misaligned and strided arrays of each library on a device, and damage around them."""

import numpy as np
import pytest
from test_backends_gpu import backend, pointer_of  # noqa: F401 - a fixture

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.arrays.memory import LAYOUTS, placements

SHAPE = (5, 37)
X = np.arange(185, dtype=np.float32).reshape(SHAPE)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def workspace(backend, layout):  # noqa: F811
    made = backend.workspace({"x": X}, {"y": Output(SHAPE, "float32")}, placements(layout, ["x", "y"]))
    yield made
    made.close()
    backend.release()


def test_a_library_sees_the_array_where_it_lies(workspace, layout):
    for name, array in (("x", workspace._guarded["x"]), ("y", workspace._guarded["y"])):
        wrapped = workspace.arrays[name]
        assert pointer_of(wrapped) == array.pointer
        if hasattr(wrapped, "__dask_graph__"):
            continue
        strides = wrapped.__cuda_array_interface__.get("strides")
        assert tuple(strides or (4 * 37, 4)) == array._placed.strides
    if layout == "misaligned":
        assert pointer_of(workspace.arrays["x"]) % 256 == 4
        assert pointer_of(workspace.arrays["y"]) % 256 == 12


def test_contents_poison_and_comparison_are_as_in_c_order(workspace):
    output = workspace._guarded["y"]
    assert workspace.compare("y", X, Tolerance()).unwritten == X.size
    workspace.poison()
    assert workspace.compare("y", X, Tolerance()).unwritten == X.size
    output.upload(X)
    assert workspace.compare("y", X, Tolerance()).mismatches == 0
    wrong = X.copy()
    wrong[3, 11] = -1
    output.upload(wrong)
    found = workspace.compare("y", X, Tolerance())
    assert (found.mismatches, found.first_mismatch.index) == (1, 3 * 37 + 11)
    assert workspace.fetch("y").tolist() == wrong.tolist()
    assert workspace.damage() == []


def test_a_hash_is_that_of_the_contents(workspace):
    assert workspace.digest() == workspace.digest_of({"x": X})
    workspace.fill({"x": -X})
    assert workspace.digest() != workspace.digest_of({"x": X})


def test_what_a_library_writes_reaches_the_elements_and_nothing_else(workspace, backend):  # noqa: F811
    if backend.name not in ("cupy", "torch", "dask", "numba"):
        pytest.skip(f"{backend.name} fills only what lies in C order")
    y = workspace.arrays["y"]
    with backend.current():
        if backend.name == "numba":
            _fill_by_numba(y, backend.stream)
        else:
            y[...] = 3
    backend.synchronize()
    assert (workspace.fetch("y") == 3).all()
    assert workspace.damage() == []


def _fill_by_numba(y, stream):
    from numba import cuda

    @cuda.jit
    def fill(values):
        i, j = cuda.grid(2)
        if i < values.shape[0] and j < values.shape[1]:
            values[i, j] = 3

    fill[(1, 2), (8, 32), stream](y)


def test_a_write_next_to_an_element_is_damage(workspace, layout):
    from pytest_gpukern.gpu.runtime import checked

    output = workspace._guarded["y"]
    beside = 4 if layout == "strided" else X.nbytes
    checked("cuMemsetD8", output.pointer + beside, 0, 4)
    (found,) = workspace.damage()
    assert (found.array, found.changed_bytes, found.between) == ("y", 4, layout == "strided")
