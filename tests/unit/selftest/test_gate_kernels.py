"""Checks the kernels of the gate's self-test: what they compute, and what their check finds."""

from __future__ import annotations

import dataclasses
import re

import cuda_on_host
import numpy as np
import pytest
from nvrtc_compiler import KNOWN, compiled, needs_nvrtc

from pytest_gpukern.selftest import gate_kernels
from pytest_gpukern.selftest.gate_kernels import (
    FMA_CHAINS,
    FMA_UNROLLED,
    PLANTED_SHARES,
    GateCase,
    GateKernels,
    gate_cases,
    gate_source,
    in_session_order,
)

SIZES = {"scale": 1000, "add": 1000, "copy": 4000, "driver copy": 4000, "sum": 3000, "histogram": 3000}
SIZES |= {"transpose": 20, "gemm": 24, "fma": 40, "chase": 30, "nothing": 1}
SMALL = [GateCase(kernel, kernel, size, "cold") for kernel, size in SIZES.items()]
SMALL.append(GateCase("fma more", "fma", 42, "cold", "fma", 0.05))
SMALL.append(GateCase("add more", "add", 1050, "cold", "add", 0.05))


def by_id(name):
    return next(case for case in SMALL if case.id == name)


@pytest.fixture(scope="module")
def compiled_for_host(tmp_path_factory):
    if cuda_on_host.COMPILER is None:
        pytest.skip("g++ is not on PATH")
    return cuda_on_host.HostCuda(gate_source(), tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def host(compiled_for_host, monkeypatch):
    cuda_on_host.install(monkeypatch, gate_kernels, compiled_for_host)
    monkeypatch.setattr(gate_kernels, "_CHAIN", 128)
    monkeypatch.setattr(gate_kernels, "_BLOCKS_PER_SM", 1)
    yield compiled_for_host
    compiled_for_host.changed.clear()


@pytest.fixture
def kernels(host):
    made = GateKernels(SMALL)
    yield made
    made.close()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_a_launch_computes_what_its_check_expects(kernels, case):
    assert kernels.fault(case) is None
    assert kernels.fault(case) is None, "nor is anything left over from the first time"


def with_number(position, change):
    """Changes one of a launch's arguments."""

    def changed(*arguments):
        values = list(arguments)
        values[position] = change(values[position])
        return values

    return changed


@pytest.mark.parametrize("change", [-1, 1], ids=["less", "more"])
@pytest.mark.parametrize(
    ("name", "kernel", "position"),
    [
        ("scale", "gate_scale", 2),
        ("add", "gate_add", 2),
        ("copy", "gate_copy", 2),
        ("transpose", "gate_transpose", 2),
        ("sum", "gate_sum", 1),
        ("histogram", "gate_histogram", 1),
        ("fma", "gate_fma", 2),
        ("chase", "gate_chase", 3),
    ],
)
def test_one_element_or_trip_less_or_more_than_was_stated_is_found(host, name, kernel, position, change):
    larger = [dataclasses.replace(case, id=f"{case.id} larger", size=case.size + 64) for case in SMALL]
    made = GateKernels([*SMALL, *larger])
    host.changed[kernel] = with_number(position, lambda number: int(number) + change)
    assert "wrong" in made.fault(by_id(name))
    made.close()


def test_a_driver_s_copy_that_is_too_short_and_a_product_with_one_wrong_entry_are_found(kernels, monkeypatch):
    copy = gate_kernels.checked
    monkeypatch.setattr(
        gate_kernels, "checked", lambda call, to, of, n, stream: copy(call, to, of, n - 4, stream)
    )
    assert kernels.fault(by_id("driver copy")) == "1 elements are wrong"

    import cupy

    def spoiled(a, b, out):
        np.matmul(a, b, out=out)
        out[3, 4] += 1

    monkeypatch.setattr(cupy, "matmul", spoiled)
    assert kernels.fault(by_id("gemm")) == "1 of 24 results are wrong"


def test_a_launch_that_does_nothing_is_found_whatever_ran_before(kernels, monkeypatch):
    for case in SMALL:
        assert kernels.fault(case) is None
    monkeypatch.setattr(kernels, "launch", lambda case: lambda: None)
    passed = [case.id for case in SMALL if kernels.fault(case) is None]
    assert passed == ["nothing"]


def test_somebody_else_s_stream_gets_the_same_launch(kernels, host, monkeypatch):
    import cuda.core

    seen = []
    monkeypatch.setattr(
        cuda.core, "Stream", type("Stream", (), {"from_handle": staticmethod(hex)}), raising=False
    )
    monkeypatch.setattr(cuda.core, "launch", lambda stream, *launch: seen.append((stream, launch)))
    kernels.on_handle(by_id("fma"), 99)()
    kernels.launch(by_id("fma"))()
    (elsewhere, theirs), (here, ours) = seen
    assert (elsewhere, here) == ("0x63", host.stream)
    assert theirs == ours


# the catalogue


def test_planted_work_is_exactly_that_share_more_and_its_base_is_there():
    cases = {case.id: case for case in gate_cases()}
    planted = [case for case in cases.values() if case.base]
    assert len(planted) == 3 * len(PLANTED_SHARES)
    for case in planted:
        base = cases[case.base]
        assert (case.kernel, case.cache) == (base.kernel, base.cache)
        assert case.size / base.size == 1 + case.share


def test_forty_sessions_of_which_five_are_the_record_give_a_thousand_comparisons():
    cases = gate_cases()
    assert len({case.id for case in cases}) == len(cases)
    assert sum(not case.base for case in cases) * (40 - 5) >= 1000


def test_sessions_measure_every_case_once_and_no_place_in_a_family_is_always_the_same_one_s():
    cases = gate_cases()
    orders = [in_session_order(cases, number) for number in range(10)]
    assert all(sorted(order, key=cases.index) == list(cases) for order in orders)
    family = {"fma 9600 trips, cold"} | {case.id for case in cases if case.base == "fma 9600 trips, cold"}
    firsts = [next(case.id for case in order if case.id in family) for order in orders]
    assert set(firsts) == family
    assert firsts[:5] == firsts[5:]


# the compiler


@needs_nvrtc
@pytest.mark.parametrize("architecture", [75, 80, 90, 100, 120])
def test_the_kernels_compile(architecture):
    if architecture not in KNOWN:
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    assert compiled(gate_source(), f"sm_{architecture}").startswith(b"\x7fELF")


@needs_nvrtc
def test_a_trip_holds_the_multiply_adds_that_are_counted_and_no_trips_are_taken_together():
    ptx = compiled(gate_source(), f"compute_{KNOWN[0]}").decode()
    kernel = ptx.partition(".entry gate_fma")[2].partition(".entry")[0]
    (loop,) = re.findall(r"^(\$L\w+):(.*?)bra\S*\s+\1;", kernel, re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^\s*fma.rn.f32\s", loop[1], re.MULTILINE)) == FMA_CHAINS * FMA_UNROLLED
