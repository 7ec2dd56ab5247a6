"""What kernels take of a multiprocessor, against what they took: exact, so that any growth is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.baseline.history import CompiledKernel
from pytest_gpukern.values.result import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpukern.baseline.history import Past
    from pytest_gpukern.values.result import KernelFacts

RESOURCES = "resources"

_FIELDS = (
    ("registers", "registers", ""),
    ("spill_bytes", "spills", " B"),
    ("local_bytes", "local", " B"),
    ("shared_bytes", "shared", " B"),
)


def grown_resources(kernels: Iterable[KernelFacts], past: Past) -> tuple[Finding, ...]:
    """A finding for each kernel that takes more of anything than in every recorded session.

    A kernel that no recorded session launched has nothing to be compared with.

    Args:
        kernels: as just seen.
        past: the sessions of the record's newest epoch.
    """
    new = by_name(map(CompiledKernel.of_facts, kernels))
    old = by_name(kernel for session in past.sessions for kernel in session.kernels)
    findings = []
    for name, launches in new.items():
        grown = resource_changes(launches, old.get(name, ()), grown=True)
        if grown:
            findings.append(Finding(RESOURCES, f"{name}: {', '.join(grown)}"))
    return tuple(findings)


def resource_changes(
    now: Sequence[CompiledKernel], before: Sequence[CompiledKernel], *, grown: bool = False
) -> list[str]:
    """`registers 32 → 96`, `spills 0 → 48 B`: what the launches of one kernel take now and never took before.

    Args:
        now: its launches now.
        before: its launches in all recorded sessions.
        grown: only what is now more than in every recorded session.
    """
    texts = []
    for field, label, unit in _FIELDS:
        new = [value for value in (getattr(kernel, field) for kernel in now) if value is not None]
        old = [value for value in (getattr(kernel, field) for kernel in before) if value is not None]
        if not new or not old or set(new) <= set(old):
            continue
        if grown and max(new) <= max(old):
            continue
        texts.append(f"{label} {max(old)} → {max(new)}{unit}")
    return texts


def by_name(kernels: Iterable[CompiledKernel]) -> dict[str, list[CompiledKernel]]:
    """Name of a kernel → its launches, in order."""
    found: dict[str, list[CompiledKernel]] = {}
    for kernel in kernels:
        found.setdefault(kernel.name, []).append(kernel)
    return found
