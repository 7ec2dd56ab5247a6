"""Tests whether a process can go on in its first CUDA context; the driver is a fake."""

from types import SimpleNamespace

import pytest

from pytest_gpukern.gpu import runtime as module
from pytest_gpukern.gpu.runtime import CudaRuntime, in_own_context

driver = pytest.importorskip("cuda.bindings.driver")
FINE, BAD = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
OURS, THEIRS = 7, 8


@pytest.fixture
def machine(monkeypatch):
    """A driver with a current context and the number of ours, which may be made current or not."""
    state = SimpleNamespace(current=OURS, number=1, alive=True)

    def set_current(context):
        if not state.alive:
            return (BAD,)
        state.current = context
        return (FINE,)

    def number_of(context):
        assert context == OURS
        return (FINE, state.number) if state.number is not None else (BAD, None)

    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (FINE, state.current))
    monkeypatch.setattr(driver, "cuCtxSetCurrent", set_current)
    monkeypatch.setattr(driver, "cuCtxGetId", number_of)
    runtime = CudaRuntime.__new__(CudaRuntime)
    runtime.context, runtime._context_id = OURS, 1
    monkeypatch.setattr(module, "runtime_in_use", lambda: runtime)
    state.change = module.context_change
    return state


def test_the_same_context_is_no_change_and_none_is_put_back(machine):
    assert machine.change(another_may_stay=False) is None
    machine.current = 0
    assert machine.change(another_may_stay=False) is None
    assert machine.current == OURS


@pytest.mark.parametrize("stays", [False, True])
def test_another_context_is_a_change_where_it_may_not_stay_and_is_left_as_it_is(machine, stays):
    machine.current = THEIRS
    assert machine.change(another_may_stay=stays) == (None if stays else "it left another context current")
    assert machine.current == THEIRS


@pytest.mark.parametrize("closed", [{"number": None}, {"number": 2}, {"current": 0, "alive": False}], ids=str)
def test_a_context_that_was_closed_is_known_though_a_new_one_has_its_address(machine, closed):
    vars(machine).update(closed)
    assert machine.change(another_may_stay=True) == "the primary context was closed"


@pytest.mark.parametrize(("current", "elsewhere"), [(OURS, False), (0, False), (THEIRS, True)])
def test_a_test_works_elsewhere_in_a_context_that_is_not_ours(machine, monkeypatch, current, elsewhere):
    machine.current = driver.CUcontext(current)
    assert in_own_context() is elsewhere
    monkeypatch.setattr(module, "runtime_in_use", lambda: None)
    assert not in_own_context()
