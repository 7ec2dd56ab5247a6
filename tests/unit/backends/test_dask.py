"""Dask's backend: the real Dask, over a stand-in for CuPy that computes with NumPy."""

from __future__ import annotations

import host_cuda
import numpy as np
import pytest

from pytest_gpukern import Output, Tolerance
from pytest_gpukern.backends import cupy as cupy_module

dask = pytest.importorskip("dask", reason="dask[array] is not installed")
pytest.importorskip("dask.array", reason="dask[array] is not installed")


@pytest.fixture
def cupy_events(monkeypatch):
    host_cuda.install(monkeypatch, cupy_module)
    events = []
    host_cuda.put_cupy(monkeypatch, events)
    return events


@pytest.fixture
def backend(cupy_events):
    return cupy_module.DaskBackend()


@pytest.fixture
def workspace(backend):
    return backend.workspace(
        {"x": np.arange(6.0).reshape(2, 3), "k": 3}, {"y": Output((2, 3), "float64"), "s": Output((), "int8")}
    )


def test_inputs_are_dask_arrays_of_one_chunk_and_outputs_are_not(workspace):
    x = workspace.arrays["x"]
    assert isinstance(x, dask.array.Array)
    assert (x.chunks, x.dtype) == (((2,), (3,)), np.dtype("float64"))
    assert isinstance(workspace.arrays["y"], host_cuda.OnDevice)
    assert workspace.arrays["k"] == 3


def test_a_graph_made_before_sees_what_is_loaded_later(workspace):
    lazy = workspace.arrays["x"].rechunk((1, 3)).map_blocks(np.negative)
    workspace.load({"x": np.ones((2, 3))})
    assert lazy.compute(scheduler="synchronous").tolist() == [[-1] * 3] * 2


def test_what_is_computed_is_adopted_and_what_is_not_computed_is_not(workspace):
    x = workspace.arrays["x"]
    assert workspace.adopt("y", x + 1) is None
    computed = (x + 1).compute(scheduler="synchronous")
    place = workspace.adopt("y", computed)
    assert (place.shape, place.dtype, place.strides) == ((2, 3), np.dtype("float64"), None)
    assert workspace.compare("y", np.arange(6.0).reshape(2, 3) + 1, Tolerance()).mismatches == 0


def test_dask_computes_in_the_launching_thread_with_the_timed_stream_current(backend, cupy_events):
    with dask.config.set(scheduler="threads"):
        with backend.current():
            assert dask.config.get("scheduler") == "synchronous"
            assert cupy_events == ["enter cupy"]
        assert dask.config.get("scheduler") == "threads"
    assert cupy_events == ["enter cupy", "leave cupy"]
    assert backend.stream.ptr == backend.timed_stream.handle == host_cuda.STREAM
