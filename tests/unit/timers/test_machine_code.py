"""Tests hashing machine code that is loaded under observation, on a fake CUPTI."""

from __future__ import annotations

import gc
import gzip
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cupti import CallbackDomain, FakeCupti, FakeMachine, LaunchCalls, Result, install

from pytest_gpukern.gpu import cubin
from pytest_gpukern.timers.cupti import machine_code as module
from pytest_gpukern.timers.cupti.activity import OURS, activity_trace
from pytest_gpukern.timers.cupti.machine_code import machine_code, observed
from pytest_gpukern.timers.timer import TimerUnavailable

CODE = b"\x7fELF\x00\x00 machine code, with zeros \x00 in it"


def cubin_of(name):
    return gzip.decompress((Path(__file__).parents[1] / "data" / f"{name}.cubin.gz").read_bytes())


@pytest.fixture
def cupti(monkeypatch):
    """CUPTI as `from cupti import cupti` finds it, not attached yet."""
    made = FakeCupti()
    install(monkeypatch, made)
    for function in (activity_trace, machine_code):
        function.cache_clear()
    yield made
    for function in (activity_trace, machine_code):
        function.cache_clear()


def sha256(code):
    """Hashes code that is no cubin, as in most tests here."""
    return f"module:{hashlib.sha256(code).hexdigest()}"


ANY = 32
"""Registers, where no code tells how many a kernel takes."""


def hashes(*kernels):
    """The hashes of these kernels, in the form of a dictionary, of those that have one."""
    found = {kernel: machine_code().sha256(kernel, ANY) for kernel in kernels}
    return {kernel: code for kernel, code in found.items() if code is not None}


def loading_observed(*, begins=True):
    return observed(lambda code: code.loading(begins=begins))


def launches_observed():
    return observed(lambda code: code.launches())


def unused(cupti):
    return cupti.subscribed is None and not cupti.enabled


def test_each_kernel_has_the_hash_of_the_module_it_came_with(cupti):
    with loading_observed():
        cupti.module_loaded(CODE, "_Z3addPf", "_Z3mulPf")
        cupti.module_loaded(b"other", "_Z3divPf")
    assert hashes("_Z3addPf", "_Z3mulPf", "_Z3divPf") == {
        "_Z3addPf": sha256(CODE),
        "_Z3mulPf": sha256(CODE),
        "_Z3divPf": sha256(b"other"),
    }
    assert unused(cupti)


def test_no_garbage_is_collected_while_what_was_loaded_is_told(cupti, monkeypatch):
    """CUPTI's thread would do it, and that cannot free PyCUDA's arrays."""
    collects, flush = [], cupti.activity_flush_all
    monkeypatch.setattr(
        cupti, "activity_flush_all", lambda flag: (collects.append(gc.isenabled()), flush(flag))
    )
    with loading_observed():
        cupti.module_loaded(CODE, "k")
    assert collects[-1] is False
    assert gc.isenabled()


def test_modules_that_are_loaded_at_other_times_are_not_looked_at(cupti):
    cupti.module_loaded(CODE, "early")
    with loading_observed():
        pass
    cupti.module_loaded(CODE, "late")
    assert hashes("early", "late") == {}


def test_hashes_of_one_case_are_known_when_the_next_is_measured(cupti):
    """A library that keeps what it compiled loads nothing the second time."""
    for kernels in (["a"], [], ["b"]):
        with loading_observed():
            for kernel in kernels:
                cupti.module_loaded(CODE, kernel)
    assert set(hashes("a", "b")) == {"a", "b"}
    assert cupti.registered == 1


@pytest.mark.parametrize("call", [call.name for call in LaunchCalls])
def test_the_launched_module_counts_if_several_have_a_kernel_of_one_name(cupti, call):
    """CuPy, for one, has a module for small and one for large arrays, with kernels of one name."""
    for code, handle in ((b"small", 0xA0), (b"large", 0xB0), (b"small", 0xA0), (b"large", 0xB0)):
        with loading_observed():
            if hashlib.sha256(code).hexdigest() not in machine_code()._modules.values():
                cupti.module_loaded(code, "k")
        with launches_observed():
            cupti.kernel_launched("k", handle, call=call)
        assert hashes("k") == {"k": sha256(code)}


def test_no_python_runs_for_a_launch_but_in_the_one_call_that_nobody_times(cupti):
    """Two callbacks for each launch made the times of an autotuner's own five times as long."""
    with loading_observed():
        assert {domain for domain, _ in cupti.called_back} == {CallbackDomain.RESOURCE}
        cupti.module_loaded(CODE, "k")
    with launches_observed():
        assert {domain for domain, _ in cupti.called_back} == set(CallbackDomain) - {
            CallbackDomain.RUNTIME_API
        }
        cupti.kernel_launched("k", 0xA0)
    assert unused(cupti)
    assert hashes("k") == {"k": sha256(CODE)}


def test_what_an_earlier_call_launched_counts_no_longer(cupti):
    with loading_observed():
        cupti.module_loaded(b"small", "k")
    with launches_observed():
        cupti.kernel_launched("k", 0xA0)
    with loading_observed():
        cupti.module_loaded(b"large", "k")
    assert hashes("k") == {}, "nobody looked at the launches of this call"


def test_a_module_that_is_loaded_in_the_first_launch_is_the_one_that_is_launched(cupti):
    for code, handle in ((CODE, 0xA0), (b"other", 0xB0)):
        with launches_observed():
            cupti.kernel_launched("k", handle, loading=lambda code=code: cupti.module_loaded(code, "k"))
        assert hashes("k") == {"k": sha256(code)}


def test_where_a_launch_may_be_from_modules_with_other_code_nothing_is_known(cupti):
    with loading_observed():
        cupti.module_loaded(CODE, "k")
        cupti.module_loaded(b"compiled again", "k")
        cupti.module_loaded(CODE, "same")
        cupti.module_loaded(CODE, "same")
    with launches_observed():
        cupti.kernel_launched("k", 0xA0)
        cupti.kernel_launched("same", 0xB0)
    assert hashes("k", "same") == {"same": sha256(CODE)}


def test_what_a_call_launches_from_several_modules_has_a_hash_of_all_of_them(cupti):
    found = []
    for codes in ((b"one", b"other"), (b"other", b"one"), (b"one", b"changed")):
        machine_code.cache_clear()
        for code, handle in zip(codes, (0xA0, 0xB0), strict=True):
            with loading_observed():
                cupti.module_loaded(code, "k")
            with launches_observed():
                for earlier in range(0xA0, handle + 1, 0x10):
                    cupti.kernel_launched("k", earlier)
        found.append(hashes("k")["k"])
    assert found[0] == found[1] != found[2]
    assert found[0] not in (sha256(b"one"), sha256(b"other"))
    assert all(each.startswith("module:") for each in found)
    with launches_observed():
        cupti.kernel_launched("k", 0xB0)
    assert hashes("k") == {"k": sha256(b"changed")}
    readable = ("numba-first.cuda-13.0.sm_90", "kernels.cuda-13.5.sm_90")
    for name in readable:
        with launches_observed():
            cupti.module_loaded(cubin_of(name), "readable")
            cupti.kernel_launched("readable", len(name))
    with launches_observed():
        for name in readable:
            cupti.kernel_launched("readable", len(name))
    assert hashes("readable")["readable"].startswith("code:")


class CompiledKernel:
    """Triton's, as far as it tells what it has loaded; only `run` of one that is not loaded would load it."""

    def __init__(self, image, handle=None):
        self.function, self.kernel = handle, image

    @property
    def run(self):
        raise AssertionError("loads the kernel")


@pytest.fixture
def triton(monkeypatch):
    name = "triton.compiler.compiler"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(CompiledKernel=CompiledKernel))


VERSIONS = [f"{name}.sm_90" for name in ("numba-first.cuda-13.0", "launches.cuda-13.0", "kernels.cuda-13.5")]


def test_triton_tells_which_of_its_versions_of_a_kernel_were_launched(cupti, triton):
    """As for corner cases, several were loaded where nobody looked at launches."""
    images = list(map(cubin_of, VERSIONS))
    one, other, another = (f"code:{cubin.code_sha256(image)}" for image in images)
    kept = [CompiledKernel(images[0], 0xA0), CompiledKernel(images[1], 0xB0), CompiledKernel(images[2])]
    with loading_observed():
        for image in images:
            cupti.module_loaded(image, "k")
    for handles, code in (([0xA0], one), ([0xB0], other), ([0xC0], None), ([0xA0, 0xC0], None)):
        with loading_observed():
            pass
        assert hashes("k") == {}, "nobody looked at the launches of this test yet"
        with launches_observed():
            cupti.kernel_launched("another", 0xD0)
            for handle in handles:
                cupti.kernel_launched("k", handle)
        assert hashes("k").get("k") == code
    kept[2].function = 0xC0  # Triton loads it
    assert hashes("k")["k"] not in (one, other, another), "a hash of two hashes"
    del kept[0]
    assert hashes("k") == {}, "its handle may be another module's by now"


def test_triton_tells_the_code_of_a_module_that_nobody_saw_loaded(cupti, triton):
    kept = CompiledKernel(CUBIN, 0xA0)
    with launches_observed():
        cupti.kernel_launched("spilling", 0xA0)
    assert machine_code().sha256("spilling", 24) == f"code:{cubin.code_sha256(kept.kernel)}"
    assert machine_code().sha256("spilling", 25) is None, "another kernel of this name"


def test_registers_tell_which_of_two_modules_a_launch_may_be_from(cupti):
    """In one, `plain` takes 10 registers and `spilling` 24."""
    spilling = cubin_of("kernels.cuda-13.5.sm_90")
    with loading_observed():
        for kernel in ("plain", "spilling"):
            cupti.module_loaded(spilling, kernel)
            cupti.module_loaded(cubin_of("numba-first.cuda-13.0.sm_90"), kernel)  # which knows neither
    with launches_observed():
        cupti.kernel_launched("spilling", 0xA0)
    found = machine_code()
    assert found.sha256("spilling", 24) is found.sha256("plain", 16) is None, "either of them"
    other = found.sha256("spilling", 25)
    assert (
        other
        == found.sha256("plain", 10)
        == f"code:{cubin.code_sha256(cubin_of('numba-first.cuda-13.0.sm_90'))}"
    )


def test_a_kernel_of_numbas_has_the_same_hash_whatever_was_compiled_before_it(cupti):
    first, later = (cubin_of(f"numba-{which}.cuda-13.0.sm_90") for which in ("first", "later"))
    assert first != later
    with loading_observed():
        cupti.module_loaded(first, "work(v1)")
        cupti.module_loaded(later, "work(v2)")
        cupti.module_loaded(cubin_of("kernels.cuda-13.5.sm_90"), "spilling")
    one, other, another = (
        machine_code().sha256(*asked) for asked in (("work(v1)", ANY), ("work(v2)", ANY), ("spilling", 24))
    )
    assert one == other != another
    assert one.startswith("code:")


def test_code_that_had_to_go_has_its_hash_all_the_same(cupti, monkeypatch):
    first = cubin_of("numba-first.cuda-13.0.sm_90")
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", len(first))
    with loading_observed():
        cupti.module_loaded(first, "k")
        cupti.module_loaded(CODE, "other")
    assert machine_code()._images.keys() == {hashlib.sha256(CODE).hexdigest()}
    assert hashes("k") == {"k": f"code:{cubin.code_sha256(first)}"}


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
        cupti.module_loaded(CODE, "k")
        assert recorded() == [("k", OURS + 1)]
    assert recorded() == [("k", OURS + 1)]
    assert hashes("k") == {"k": sha256(CODE)}


def test_an_error_meanwhile_gets_through_and_nothing_stays_observed(cupti):
    def fails():
        cupti.module_loaded(CODE, "k")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), loading_observed():
        fails()
    assert unused(cupti)
    assert hashes("k") == {"k": sha256(CODE)}


# reading what was loaded

CUBIN = cubin_of("kernels.cuda-13.5.sm_90")


def test_a_module_is_read_once_before_its_kernels_are_timed_however_often_it_is_loaded(cupti, monkeypatch):
    read, code_sha256 = [], cubin.code_sha256
    monkeypatch.setattr(cubin, "code_sha256", lambda image: read.append(image) or code_sha256(image))
    with loading_observed(begins=False):
        cupti.module_loaded(CUBIN, "places", "spilling")
    assert read == []
    for _ in range(3):
        with launches_observed():
            cupti.module_loaded(CUBIN, "places", "spilling")
            cupti.kernel_launched("spilling", 0xA0)
        assert read == [CUBIN]
    for asked in (("places", 23), ("spilling", 24)):
        assert machine_code().sha256(*asked) is not None
    assert read == [CUBIN]


# why not


def test_without_cupti_nothing_is_observed(cupti):
    cupti.errors["cuptiActivityRegisterCallbacks"] = Result.ERROR_NOT_COMPATIBLE
    with loading_observed():
        cupti.module_loaded(CODE, "k")
    assert machine_code() is None


@pytest.mark.parametrize("refuses", ["subscribe", "enable_callback", "activity_enable"])
def test_a_profiler_that_is_attached_keeps_nobody_from_working(cupti, refuses):
    cupti.errors[refuses] = Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    worked = []
    with loading_observed():
        cupti.module_loaded(CODE, "k")
        worked.append(1)
    assert worked == [1]
    assert hashes("k") == {}
    assert "another profiler" in machine_code().refused
    assert unused(cupti)
    with pytest.raises(TimerUnavailable, match="another profiler"), machine_code().loading():
        pass


def test_records_that_cannot_be_read_in_the_end_keep_nobody_from_working(cupti):
    with loading_observed():
        cupti.module_loaded(CODE, "read")
    cupti.errors["activity_flush_all"] = Result.ERROR_UNKNOWN
    with loading_observed():
        cupti.module_loaded(CODE, "k")
    assert machine_code().refused == "CUPTI: ERROR_UNKNOWN (999)"
    assert set(hashes("read", "k")) == {"read"}
    assert unused(cupti)
