"""Device work → facts about its kernels."""

from __future__ import annotations

import dataclasses

from pytest_gpukern.gpu.kernel_facts import kernel_facts
from pytest_gpukern.values.result import DeviceWork, KernelFacts

SEEN = KernelFacts("exp_kernel", 40, 128, 3072, grid=(100, 1, 1), block=(256, 1, 1), symbol="exp_kernel")
COPY = DeviceWork("memcpy", "memcpy HtoD, pageable", 2.0, 1e6, 8e6)
EXP = DeviceWork("kernel", "exp_kernel", 2.0, 5e4, kernel=SEEN)


def test_kernels_have_facts_and_copies_have_none():
    code = {("exp_kernel", 40): "beef"}
    (facts,) = kernel_facts([COPY, EXP], (9, 0), lambda *asked: code.get(asked))
    assert facts == dataclasses.replace(
        SEEN,
        blocks_per_sm=6,
        occupancy=0.75,
        limited_by="40 registers a thread",
        machine_code_sha256="beef",
    )


def test_what_is_not_known_is_none():
    for capability in (None, (5, 2)):
        (facts,) = kernel_facts([EXP], capability)
        assert (facts.blocks_per_sm, facts.occupancy, facts.limited_by) == (None, None, None)
        assert facts.machine_code_sha256 is None


def test_without_kernels_there_are_no_facts():
    assert kernel_facts([COPY], (9, 0)) == ()
    assert kernel_facts([], (9, 0)) == ()
