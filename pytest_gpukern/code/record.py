"""Says what changed in what kernels are compiled to since the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpukern.baseline.code_file import as_recorded
from pytest_gpukern.findings.regressions import RESOURCES
from pytest_gpukern.report import units
from pytest_gpukern.values.result import CaseInfo, CompiledCode, Finding, KernelFacts, Verdict, sizes_text
from pytest_gpukern.values.verdict_table import VerdictKind

DOUBLES = "fp64"
"""Class of instructions that compute in double precision."""
_FACTS = (
    ("registers", "registers", ""),
    ("spill_bytes", "spills", " B"),
    ("local_bytes", "local memory", " B"),
    ("shared_bytes", "shared memory", " B"),
    ("stack_bytes", "stack", " B"),
    ("code_bytes", "code", " B"),
)
_NEVER_MORE = ("spill_bytes", "local_bytes", "shared_bytes")
"""Resources of which any growth counts; of registers, growth that costs occupancy."""


def judged(case: CaseInfo, architecture: str, now: CompiledCode, before: CompiledCode | None) -> Verdict:
    """Says how code compares with the record, or with another revision's."""
    if before is None:
        return Verdict(VerdictKind.NEW, "no machine code is recorded")
    now, before = as_recorded(now), as_recorded(before)  # another revision's code is as it was compiled
    if now.refused:
        kind = VerdictKind.INVALID
        return Verdict(kind, f"compiled before, and does not any more: {now.refused}")
    if before.kernels == now.kernels:
        return Verdict(VerdictKind.SAME_CODE, "the same instructions and resources")
    changes = ", ".join(_changes(now.kernels, before.kernels)) or "other instructions, the same resources"
    compiler = f"{before.compiler} → {now.compiler}: " if before.compiler != now.compiler else ""
    chosen = f"autotuned {_chosen(before)} → {_chosen(now)}: " if before.autotuned != now.autotuned else ""
    return Verdict(VerdictKind.CHANGED, f"{compiler}{case.label} {architecture}: {chosen}{changes}")


def growth(architecture: str, now: CompiledCode, before: CompiledCode | None) -> Iterator[Finding]:
    """Yields what grew so that it may cost time; nothing where another compiler or autotuner chose it."""
    if before is None or (before.compiler, before.autotuned) != (now.compiler, now.autotuned):
        return
    for kernel, old in _pairs(now.kernels, before.kernels):
        occupancy = (kernel.occupancy or 0.0) < (old.occupancy or 0.0)
        grown = [name for name in _NEVER_MORE if (getattr(kernel, name) or 0) > (getattr(old, name) or 0)]
        grown += ["registers"] if kernel.registers > old.registers and occupancy else []
        doubles = dict(kernel.instructions).get(DOUBLES) and not dict(old.instructions).get(DOUBLES)
        if grown or doubles:
            text = ", ".join(_changes((kernel,), (old,)))
            yield Finding(RESOURCES, f"{kernel.name} {architecture}: {text}")


def _pairs(
    now: Sequence[KernelFacts], before: Sequence[KernelFacts]
) -> Iterator[tuple[KernelFacts, KernelFacts]]:
    """Yields kernels with what is on record of them: by place where all names agree, else by name.

    If as many names are new as are gone, we take them for new names of the same kernels, in their order.
    """
    if [kernel.name for kernel in now] == [kernel.name for kernel in before]:
        yield from zip(now, before, strict=True)
        return
    for kernel in now:
        old = next((other for other in before if other.name == kernel.name), None)
        if old is not None:
            yield kernel, old
    new, gone = (
        [kernel for kernel in some if all(kernel.name != other.name for other in others)]
        for some, others in ((now, before), (before, now))
    )
    yield from zip(new, gone, strict=True) if len(new) == len(gone) else ()


def _changes(now: Sequence[KernelFacts], before: Sequence[KernelFacts]) -> Iterator[str]:
    """Yields what differs, as `registers 30 → 53`."""
    names, old_names = ([kernel.name for kernel in kernels] for kernels in (now, before))
    yield from (f"new: kernel {name}" for name in dict.fromkeys(names) if name not in old_names)
    yield from (f"gone: kernel {name}" for name in dict.fromkeys(old_names) if name not in names)
    texts: dict[str, None] = {}
    for kernel, old in _pairs(now, before):
        for field, label, unit in _FACTS:
            was, is_ = getattr(old, field), getattr(kernel, field)
            if was != is_ and not (field == "code_bytes" and kernel.instructions != old.instructions):
                texts[f"{label} {was or 0} → {is_ or 0}{unit}"] = None
        counts, old_counts = dict(kernel.instructions), dict(old.instructions)
        kinds = sorted({*old_counts, *counts}, key=lambda kind: (kind != DOUBLES, kind))
        mix = {
            f"{kind.upper() if kind.startswith('fp') else kind} instructions {was} → {is_}": kind
            for kind in kinds
            if (was := old_counts.get(kind, 0)) != (is_ := counts.get(kind, 0))
        }
        texts |= {text: None for text, kind in mix.items() if kind == DOUBLES}
        if old.block != kernel.block:
            texts[f"block {_sizes(old.block)} → {_sizes(kernel.block)}"] = None
        if old.occupancy != kernel.occupancy:
            before_text = units.share(old.occupancy).removesuffix(" %")
            texts[f"occupancy {before_text} → {units.share(kernel.occupancy)}"] = None
        texts |= dict.fromkeys(mix)
    yield from texts


def _chosen(code: CompiledCode) -> str:
    return ", ".join(sizes_text(settings) for settings in code.autotuned.values()) or "the first"


def _sizes(block: tuple[int, int, int] | None) -> str:
    return "×".join(map(str, block or ()))
