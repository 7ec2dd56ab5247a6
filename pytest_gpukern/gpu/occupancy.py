"""How many warps of a kernel fit on a multiprocessor at once: NVIDIA's occupancy calculator.

The formulas and the granularities are those of `cuda_occupancy.h`, which comes with the CUDA toolkit (read
in CUDA 13.0 and 13.3). The limits of each compute capability are those of the table "Technical Specifications
per Compute Capability" in the CUDA C++ Programming Guide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.values.result import LaunchShape

_WARP = 32
_REGISTERS = 65536
"""32-bit registers of a multiprocessor, and the most that a block may have; the same from 7.0 on."""
_PARTITIONS = 4
"""Of a multiprocessor; each has its share of the registers and of the warps."""
_REGISTER_UNIT = 256
"""Registers are given to whole warps, in this unit."""


class Limits(NamedTuple):
    """What one multiprocessor holds at most at once: warps, blocks and KiB of shared memory."""

    warps: int
    blocks: int
    shared_kib: int


LIMITS: Mapping[tuple[int, int], Limits] = MappingProxyType(
    {
        (7, 0): Limits(64, 32, 96),
        (7, 2): Limits(64, 32, 96),
        (7, 5): Limits(32, 16, 64),
        (8, 0): Limits(64, 32, 164),
        (8, 6): Limits(48, 16, 100),
        (8, 7): Limits(48, 16, 164),
        (8, 9): Limits(48, 24, 100),
        (9, 0): Limits(64, 32, 228),
        (10, 0): Limits(64, 32, 228),
        (10, 3): Limits(64, 32, 228),
        (11, 0): Limits(48, 24, 228),
        (12, 0): Limits(48, 24, 100),
        (12, 1): Limits(48, 24, 100),
    }
)
"""Compute capability → limits."""


@dataclass(frozen=True)
class Occupancy:
    """How far a kernel can fill a multiprocessor.

    Attributes:
        blocks: blocks that fit on a multiprocessor at once.
        warps: their warps.
        share: of the warps that a multiprocessor holds, 1.0 for all of them.
        limited_by: what keeps a further block away, in words; None where every warp is taken.
    """

    blocks: int
    warps: int
    share: float
    limited_by: str | None


def occupancy(shape: LaunchShape, compute_capability: tuple[int, int]) -> Occupancy | None:
    """The theoretical occupancy of a launch, or None for a capability that is not known here.

    It is that of a grid with blocks enough for every multiprocessor, with as much shared memory as the
    driver can give. Named barriers and virtual resources, which a launch does not tell of, are left out.
    None also for a launch that does not fit on such a multiprocessor at all.
    """
    limits = LIMITS.get(compute_capability)
    if limits is None:
        return None
    threads = math.prod(shape.block)
    warps = -(-threads // _WARP)
    shared = _shared_bytes(shape, compute_capability[0])
    registers = f"{shape.registers} registers a thread"
    fitting = {
        f"blocks of {threads} threads": limits.warps // max(1, warps),
        registers: _blocks_by_registers(shape.registers, warps),
        f"{_kib(shared)} of shared memory a block": limits.shared_kib * 1024 // shared if shared else None,
        f"{limits.blocks} blocks a multiprocessor": limits.blocks,
    }
    known = {words: blocks for words, blocks in fitting.items() if blocks is not None}
    blocks = min(known.values())
    if blocks == 0 or warps == 0:
        return None
    limiting = [words for words, most in known.items() if most == blocks]
    full = blocks * warps == limits.warps
    share = blocks * warps / limits.warps
    return Occupancy(blocks, blocks * warps, share, None if full else " and ".join(limiting))


def _blocks_by_registers(registers: int, warps: int) -> int | None:
    """Blocks for whose registers there is room; None for a kernel without any.

    The hardware's check of a launch counts the warps of a block in whole rounds over the partitions.
    """
    of_warp = _rounded_up(registers * _WARP, _REGISTER_UNIT)
    if of_warp == 0:
        return None
    if of_warp * _rounded_up(warps, _PARTITIONS) > _REGISTERS:
        return 0
    return _REGISTERS // _PARTITIONS // of_warp * _PARTITIONS // max(1, warps)


def _shared_bytes(shape: LaunchShape, major: int) -> int:
    """What a block is given: from 8.0 on the driver reserves 1 KiB of it, and the unit is 128 bytes."""
    asked = shape.static_shared_bytes + shape.dynamic_shared_bytes
    return _rounded_up(asked + 1024, 128) if major >= 8 else _rounded_up(asked, 256)


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _kib(count: int) -> str:
    return f"{count / 1024:.4g} KiB"
