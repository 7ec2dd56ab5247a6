"""How many blocks of a kernel fit on a multiprocessor, against NVIDIA's own calculator."""

from __future__ import annotations

import pytest

from pytest_gpukern.gpu.kernel_facts import LIMITS, occupancy
from pytest_gpukern.gpu.theory import RATES
from pytest_gpukern.values.result import KernelFacts


def launch(threads, registers=32, static=0, dynamic=0):
    return KernelFacts("k", registers, 0, static + dynamic, grid=(1000, 1, 1), block=(threads, 1, 1))


# Capability, registers, threads, static and dynamic shared bytes, and what
# cudaOccMaxActiveBlocksPerMultiprocessor of CUDA 13.3's cuda_occupancy.h says for it.
CALCULATED = [
    ((7, 0), 33, 512, 8192, 20000, 3),
    ((7, 0), 96, 96, 49152, 1000, 1),
    ((7, 0), 40, 192, 12000, 90000, 0),
    ((7, 2), 128, 64, 32768, 60000, 1),
    ((7, 2), 200, 512, 0, 20000, 0),
    ((7, 5), 16, 33, 0, 0, 16),
    ((7, 5), 8, 192, 20000, 1000, 3),
    ((7, 5), 56, 256, 0, 90000, 0),
    ((8, 0), 65, 640, 0, 90000, 1),
    ((8, 0), 32, 33, 100, 1000, 32),
    ((8, 0), 200, 1024, 16384, 60000, 0),
    ((8, 6), 65, 96, 512, 1000, 9),
    ((8, 6), 96, 192, 20000, 0, 3),
    ((8, 6), 128, 768, 16384, 20000, 0),
    ((8, 7), 56, 256, 1024, 1000, 4),
    ((8, 7), 100, 33, 4096, 0, 8),
    ((8, 9), 24, 384, 16384, 0, 4),
    ((8, 9), 100, 640, 1024, 60000, 0),
    ((9, 0), 200, 64, 20000, 90000, 2),
    ((9, 0), 8, 128, 8192, 60000, 3),
    ((9, 0), 128, 33, 0, 0, 8),
    ((9, 0), 255, 384, 49152, 1000, 0),
    ((10, 0), 24, 192, 8192, 1000, 10),
    ((10, 0), 255, 32, 32768, 20000, 4),
    ((10, 3), 40, 192, 20000, 0, 8),
    ((11, 0), 33, 640, 512, 90000, 2),
    ((11, 0), 64, 32, 32768, 0, 6),
    ((12, 0), 63, 96, 8192, 90000, 1),
    ((12, 0), 255, 384, 49152, 0, 0),
    ((12, 1), 64, 384, 12000, 20000, 2),
    ((12, 1), 96, 1024, 12000, 60000, 0),
]


@pytest.mark.parametrize(("capability", "registers", "threads", "static", "dynamic", "blocks"), CALCULATED)
def test_as_many_blocks_fit_as_nvidias_calculator_says(
    capability, registers, threads, static, dynamic, blocks
):
    found = occupancy(launch(threads, registers, static, dynamic), capability)
    assert (found.blocks if found else 0) == blocks


def test_occupancy_is_the_share_of_a_multiprocessors_warps():
    found = occupancy(launch(256, registers=40), (9, 0))
    assert (found.blocks, found.warps, found.share) == (6, 48, 0.75)
    assert found.limited_by == "40 registers a thread"


def test_at_full_occupancy_nothing_limits():
    found = occupancy(launch(256, registers=32), (9, 0))
    assert (found.share, found.limited_by) == (1.0, None)


@pytest.mark.parametrize(
    ("shape", "capability", "words"),
    [
        (launch(32), (9, 0), "32 blocks a multiprocessor"),
        (launch(1024), (8, 6), "blocks of 1024 threads"),
        (launch(128, static=16 * 1024), (8, 0), "17 KiB of shared memory a block"),
        (launch(128, dynamic=16 * 1024), (7, 0), "16 KiB of shared memory a block"),
        (
            launch(128, registers=80, static=40 * 1024 - 1024),
            (9, 0),
            "40 KiB of shared memory a block",
        ),
        (launch(512, registers=64), (9, 0), "64 registers a thread"),
        (launch(768, registers=64), (9, 0), "64 registers a thread"),
        (launch(768, registers=8), (9, 0), "blocks of 768 threads"),
        (launch(32, registers=64), (7, 5), "16 blocks a multiprocessor"),
        (
            launch(64, registers=96, static=21 * 1024),
            (9, 0),
            "96 registers a thread and 22 KiB of shared memory a block",
        ),
    ],
)
def test_what_keeps_a_further_block_away_is_said_with_its_figure(shape, capability, words):
    assert occupancy(shape, capability).limited_by == words


def test_a_block_has_three_dimensions():
    cube = KernelFacts("k", 32, 0, 0, grid=(1, 1, 1), block=(8, 8, 8))
    assert occupancy(cube, (9, 0)) == occupancy(launch(512), (9, 0))


@pytest.mark.parametrize("capability", [(5, 2), (6, 1), (9, 9), (13, 0)])
def test_a_capability_that_is_not_known_has_no_occupancy(capability):
    assert occupancy(launch(128), capability) is None


def test_every_capability_whose_rates_are_known_has_limits():
    assert LIMITS.keys() == RATES.keys()
