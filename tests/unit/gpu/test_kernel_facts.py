"""Device work → facts about its kernels."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_gpukern.gpu.cubin import Spills
from pytest_gpukern.gpu.kernel_facts import kernel_facts
from pytest_gpukern.values.result import DeviceWork, KernelFacts

SEEN = KernelFacts("exp_kernel", 40, 128, 3072, grid=(100, 1, 1), block=(256, 1, 1), symbol="exp_kernel")
COPY = DeviceWork("memcpy", "memcpy HtoD, pageable", 2.0, 1e6, 8e6)
EXP = DeviceWork("kernel", "exp_kernel", 2.0, 5e4, kernel=SEEN)


def test_kernels_have_facts_and_copies_have_none():
    code, spills = {("exp_kernel", 40): "beef"}, {("exp_kernel", 40): Spills(48, 52)}
    (facts,) = kernel_facts(
        [COPY, EXP], (9, 0), lambda *asked: code.get(asked), lambda *asked: spills.get(asked)
    )
    assert facts == dataclasses.replace(
        SEEN,
        blocks_per_sm=6,
        occupancy=0.75,
        limited_by="40 registers a thread",
        machine_code_sha256="beef",
        spill_store_bytes=48,
        spill_load_bytes=52,
    )


def test_what_is_not_known_is_none():
    for capability in (None, (5, 2)):
        (facts,) = kernel_facts([EXP], capability)
        assert (facts.blocks_per_sm, facts.occupancy, facts.limited_by) == (None, None, None)
        assert facts.machine_code_sha256 is None
        assert (facts.spill_store_bytes, facts.spill_load_bytes) == (None, None)


def test_spills_that_were_asked_for_in_vain_are_not_known():
    (facts,) = kernel_facts([EXP], (9, 0), spills=lambda kernel, registers: None)
    assert (facts.spill_store_bytes, facts.spill_load_bytes) == (None, None)


def test_a_kernel_without_local_memory_spills_nothing_and_nobody_is_asked():
    lean = dataclasses.replace(EXP, kernel=dataclasses.replace(SEEN, local_bytes=0))
    for spills in (None, lambda kernel, registers: pytest.fail("its module is read")):
        (facts,) = kernel_facts([lean], (9, 0), spills=spills)
        assert (facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0)


def test_without_kernels_there_are_no_facts():
    assert kernel_facts([COPY], (9, 0)) == ()
    assert kernel_facts([], (9, 0)) == ()
