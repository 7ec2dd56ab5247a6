"""What there is to know about the kernels of a call: launch, resources, occupancy, machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.gpu.cubin import Spills
from pytest_gpukern.gpu.names import readable
from pytest_gpukern.gpu.occupancy import occupancy
from pytest_gpukern.values.result import KernelFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpukern.values.result import DeviceWork

_NO_SPILLS = Spills(0, 0)


def kernel_facts(
    work: Iterable[DeviceWork],
    compute_capability: tuple[int, int] | None,
    machine_code: Callable[[str, int], str | None] | None = None,
    spills: Callable[[str, int], Spills | None] | None = None,
) -> tuple[KernelFacts, ...]:
    """The kernels among what a call had the device do, in order.

    Args:
        work: of a measurement whose timer saw it.
        compute_capability: of the device; without it, or for one that is not known, there is no occupancy.
        machine_code: mangled name, registers → hash of the kernel's machine code, or None.
        spills: mangled name, registers → what the kernel spills, or None; asked only for those that use local
            memory.
    """
    facts = []
    for entry in work:
        if entry.kind != "kernel" or entry.shape is None:
            continue
        filled = occupancy(entry.shape, compute_capability) if compute_capability is not None else None
        asked = (entry.name, entry.shape.registers)
        spilled = _NO_SPILLS if not entry.shape.local_bytes else spills(*asked) if spills else None
        facts.append(
            KernelFacts(
                name=entry.name,
                readable=readable(entry.name),
                shape=entry.shape,
                count=entry.count,
                time_ns=entry.time_ns,
                blocks_per_sm=filled.blocks if filled else None,
                occupancy=filled.share if filled else None,
                limited_by=filled.limited_by if filled else None,
                machine_code_sha256=machine_code(*asked) if machine_code else None,
                spill_store_bytes=spilled.store_bytes if spilled is not None else None,
                spill_load_bytes=spilled.load_bytes if spilled is not None else None,
            )
        )
    return tuple(facts)


def without_hash(kernels: Sequence[KernelFacts], refused: str | None) -> tuple[str, ...]:
    """A note on kernels whose machine code is not known, or nothing: a change of it will not be told.

    Args:
        kernels: of a case.
        refused: why code could not be looked at, in words, or None where nothing stood in the way.
    """
    missing = [facts.readable for facts in kernels if facts.machine_code_sha256 is None]
    if not missing:
        return ()
    more = len(missing) - 1
    others = f" and {more} {'kernel' if more == 1 else 'kernels'} more" if more else ""
    why = refused or "its loading was not seen, or not which of several with its name was launched"
    return (f"no hash of the machine code of {missing[0]}{others}: {why}",)
