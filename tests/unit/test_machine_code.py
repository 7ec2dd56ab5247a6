"""Hashes and spills of machine code that is loaded while somebody observes, on a CUPTI that tells of it."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from fake_cubin import fake_cubin
from fake_cupti import WAYS, FakeMachine, Result, install

from pytest_gpukern import cubin
from pytest_gpukern.cubin import Spills
from pytest_gpukern.timers import TimerUnavailable
from pytest_gpukern.timers import machine_code as module
from pytest_gpukern.timers.activity import OURS, activity_trace
from pytest_gpukern.timers.machine_code import MachineCode, loading_observed, machine_code

CODE, AGAIN = fake_cubin("k"), fake_cubin("k", salt="compiled again")


@pytest.fixture(params=WAYS)
def cupti(request, monkeypatch):
    """CUPTI as `from cupti import cupti` finds it, not attached yet, read in one way and the other."""
    made = WAYS[request.param]()
    install(monkeypatch, made)
    for function in (activity_trace, machine_code):
        function.cache_clear()
    yield made
    for function in (activity_trace, machine_code):
        function.cache_clear()


def sha256(code):
    return hashlib.sha256(code).hexdigest()


def unused(cupti):
    return cupti.subscribed is None and not cupti.enabled


def test_each_kernel_has_the_hash_of_the_module_it_came_with(cupti):
    two, one = fake_cubin("_Z3addPf", "_Z3mulPf", functions=["_Z4helpv"]), fake_cubin("_Z3divPf")
    with loading_observed():
        cupti.module_loaded(two)
        cupti.module_loaded(one)
    assert machine_code().sha256 == {
        "_Z3addPf": sha256(two),
        "_Z3mulPf": sha256(two),
        "_Z3divPf": sha256(one),
    }
    assert unused(cupti)


def test_modules_that_are_loaded_at_other_times_are_not_looked_at(cupti):
    cupti.module_loaded(fake_cubin("early"))
    with loading_observed():
        pass
    cupti.module_loaded(fake_cubin("late"))
    assert machine_code().sha256 == {}


def test_hashes_of_one_case_are_known_when_the_next_is_measured(cupti):
    """A library that keeps what it compiled loads nothing the second time."""
    for kernels in (["a"], [], ["b"]):
        with loading_observed():
            for kernel in kernels:
                cupti.module_loaded(fake_cubin(kernel))
    assert set(machine_code().sha256) == {"a", "b"}
    assert cupti.registered == 1


def test_of_two_modules_with_a_kernel_of_one_name_the_latest_counts(cupti):
    with loading_observed():
        cupti.module_loaded(CODE)
        cupti.module_loaded(AGAIN)
    assert machine_code().sha256 == {"k": sha256(AGAIN)}
    with loading_observed():
        cupti.module_loaded(CODE)
    assert machine_code().sha256 == {"k": sha256(CODE)}


def test_a_module_without_code_has_no_hash(cupti):
    with loading_observed():
        cupti.module_loaded(b"")
    assert machine_code().sha256 == {}


@pytest.mark.parametrize("code", [b"\x7fELF and no more", CODE[:-70], fake_cubin("k", machine=62)])
def test_kernels_of_what_is_no_whole_cubin_are_not_known(cupti, code):
    with loading_observed():
        cupti.module_loaded(code)
        cupti.module_loaded(fake_cubin("other"))
    assert set(machine_code().sha256) == {"other"}


def test_kernels_without_a_record_are_known_by_their_symbols(cupti):
    cupti.lost = lambda record: record.kind == cupti.ActivityKind.FUNCTION
    with loading_observed():
        cupti.module_loaded(CODE, "k")
    assert machine_code().sha256 == {"k": sha256(CODE)}


def test_kernels_that_no_symbol_marks_are_known_by_their_records_from_the_first_on(cupti):
    unmarked, unreadable = fake_cubin(functions=["gemm"]), b"no cubin"
    with loading_observed():
        cupti.module_loaded(unmarked, "gemm")
        cupti.module_loaded(unreadable, "other")
    assert machine_code().sha256 == {"gemm": sha256(unmarked), "other": sha256(unreadable)}
    assert unused(cupti)


def test_functions_of_modules_that_were_loaded_before_are_left_out(cupti):
    cupti.module_loaded(CODE)
    with loading_observed():
        cupti._write(cupti.ActivityKind.FUNCTION, name="early", module_id=1)
        cupti.module_loaded(AGAIN)
    assert machine_code().sha256 == {"k": sha256(AGAIN)}


def test_records_are_waited_for_only_where_something_was_loaded(cupti):
    found = MachineCode(activity_trace())
    with found.loading():
        pass
    cupti.errors["activity_flush_all"] = Result.ERROR_UNKNOWN
    with found.loading():
        pass
    with pytest.raises(TimerUnavailable, match="ERROR_UNKNOWN"), found.loading():
        cupti.module_loaded(CODE)
    assert unused(cupti)
    assert set(found.sha256) == {"k"}


def test_a_module_is_read_for_its_kernels_once_and_only_when_they_are_asked_for(cupti, monkeypatch):
    seen, kernels = [], cubin.kernels
    monkeypatch.setattr(cubin, "kernels", lambda image: seen.append(image) or kernels(image))
    for _ in range(3):
        with loading_observed():
            cupti.module_loaded(CODE)
    assert seen == []
    assert machine_code().sha256 == machine_code().sha256 == {"k": sha256(CODE)}
    assert seen == [CODE]


def test_kernels_are_recorded_as_ever_before_while_and_after_it_is_observed(cupti):
    trace, machine = activity_trace(), FakeMachine(cupti)

    def recorded():
        trace.open(concurrently=True)
        trace.push(OURS + 1)
        machine.kernel("k")()
        trace.pop()
        return [(found.name, found.call) for found in trace.close()]

    assert recorded() == [("k", OURS + 1)]
    with loading_observed():
        cupti.module_loaded(CODE)
        assert recorded() == [("k", OURS + 1)]
    assert recorded() == [("k", OURS + 1)]
    assert machine_code().sha256 == {"k": sha256(CODE)}


def test_an_error_meanwhile_gets_through_and_nothing_stays_observed(cupti):
    def fails():
        cupti.module_loaded(CODE)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), loading_observed():
        fails()
    assert unused(cupti)
    assert machine_code().sha256 == {"k": sha256(CODE)}


# spills

CUBIN = gzip.decompress((Path(__file__).parent / "data" / "spills.cuda-13.5.sm_90.cubin.gz").read_bytes())


@pytest.fixture
def read(monkeypatch):
    """Which images were read."""
    seen, spills = [], cubin.spills
    monkeypatch.setattr(cubin, "spills", lambda image: seen.append(image) or spills(image))
    return seen


def test_what_a_kernel_spills_is_read_from_the_module_it_came_with(cupti, read):
    with loading_observed():
        cupti.module_loaded(CUBIN)
    assert read == [], "nobody asked"
    assert machine_code().spills("spilling") == cubin.spills(CUBIN)["spilling"]
    assert machine_code().spills("places") == Spills(0, 0)
    assert machine_code().spills("calling") is None


def test_a_module_is_read_once_however_often_it_is_loaded_and_asked_for(cupti, read):
    for _ in range(3):
        with loading_observed():
            cupti.module_loaded(CUBIN)
        for kernel in ("places", "spilling"):
            assert machine_code().spills(kernel) is not None
    assert read == [CUBIN]


def test_of_two_modules_with_a_kernel_of_one_name_the_latest_tells_what_it_spills(cupti):
    with loading_observed():
        cupti.module_loaded(CUBIN)
        cupti.module_loaded(fake_cubin("places"))
    assert machine_code().spills("places") is None
    with loading_observed():
        cupti.module_loaded(CUBIN)
    assert machine_code().spills("places") == Spills(0, 0)


@pytest.mark.parametrize("code", [CODE, b"no cubin", b""], ids=["nothing of spills", "no cubin", "no code"])
def test_what_a_module_without_readable_code_spills_is_not_known(cupti, code):
    with loading_observed():
        cupti.module_loaded(code)
    assert machine_code().spills("k") is None
    assert machine_code().spills("never loaded") is None


def test_the_oldest_code_that_nobody_asked_for_goes_first(cupti, monkeypatch):
    older = fake_cubin("only_in_the_older", salt="long" * 1000)
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", len(CUBIN) + len(CODE))
    with loading_observed():
        cupti.module_loaded(older)
        cupti.module_loaded(CUBIN)
        cupti.module_loaded(CODE)
    found = machine_code()
    assert sha256(older) not in found._images
    assert found.spills("only_in_the_older") is None
    assert found.spills("places") == Spills(0, 0)
    assert {"only_in_the_older", "places", "k"} <= set(found.sha256)


# why not


def test_without_cupti_nothing_is_observed(cupti):
    cupti.errors["activity_register_callbacks"] = Result.ERROR_NOT_COMPATIBLE
    with loading_observed():
        cupti.module_loaded(CODE)
    assert machine_code() is None


@pytest.mark.parametrize("refuses", ["subscribe", "enable_callback", "activity_enable"])
def test_a_profiler_that_is_attached_keeps_nobody_from_working(cupti, refuses):
    cupti.errors[refuses] = Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    worked = []
    with loading_observed():
        cupti.module_loaded(CODE)
        worked.append(1)
    assert worked == [1]
    assert machine_code().sha256 == {}
    assert "another profiler" in machine_code().refused
    assert unused(cupti)
    with pytest.raises(TimerUnavailable, match="another profiler"), machine_code().loading():
        pass


def test_a_subscription_that_cannot_be_ended_keeps_nobody_from_working(cupti):
    cupti.errors["unsubscribe"] = Result.ERROR_UNKNOWN
    with loading_observed():
        cupti.module_loaded(CODE)
    assert machine_code().refused == "CUPTI: ERROR_UNKNOWN (999)"
    assert set(machine_code().sha256) == {"k"}
