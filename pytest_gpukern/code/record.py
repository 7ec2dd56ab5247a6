"""Records what kernels are compiled to, one fact a line, and says what changed since.

A file holds no grids: what they are depends on the machine's memory, and code does not depend on them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from pytest_gpukern.baseline.store import CODE, Store, held_by
from pytest_gpukern.findings.regressions import RESOURCES
from pytest_gpukern.report import units
from pytest_gpukern.values import atomic_file
from pytest_gpukern.values.grouping import grouped
from pytest_gpukern.values.result import CaseInfo, CompiledCode, Finding, KernelFacts, Verdict, sizes_text
from pytest_gpukern.values.stored import Stored
from pytest_gpukern.values.untrusted_json import ContentError, content_of, of_schema, read
from pytest_gpukern.values.verdict_table import VerdictKind

SCHEMA = 1
RESTORE = (
    "Restore the file from version control, or delete it and record again with "
    "--gpukern-code=sm_90 --gpukern-baseline=create"
)
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
_ON_A_LINE = re.compile(r"\[\s+(?:\d+,\s+\d+,\s+\d+|\"\w[^\"]*\",\s+\d+)\s+\]")
"""Blocks, and instructions of a class."""
_NEVER_MORE = ("spill_bytes", "local_bytes", "shared_bytes")
"""Resources of which any growth counts; of registers, growth that costs occupancy."""


Code = Mapping[str, CompiledCode]
"""Architecture → what a case is compiled to."""


class RecordedCode(Stored, frozen=True):
    """Holds what one case is compiled to.

    Attributes:
        code: architecture → its kernels.
        like: id of another case of the file that is compiled to the same; then `code` is empty.
    """

    code: dict[str, CompiledCode] = {}
    like: str = ""


class CodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """Holds the machine code on record of a problem, or of a module of plain tests."""

    problem: str
    cases: dict[str, RecordedCode] = {}

    def of(self, case_id: str) -> Code:
        known = self.cases.get(case_id)
        if known is not None and known.like:
            known = self.cases.get(known.like)
        return known.code if known is not None else {}

    def renaming(self, names: Mapping[str, str]) -> CodeFile:
        code = {names.get(case_id, case_id): self.of(case_id) for case_id in self.cases}
        return structs.replace(self, cases=_shortened(code))

    def without(self, case_ids: Iterable[str]) -> CodeFile:
        """Returns the file without some cases; what was like one of them has its code."""
        kept = sorted(self.cases.keys() - set(case_ids))
        return structs.replace(self, cases=_shortened({case_id: self.of(case_id) for case_id in kept}))


class CodeRecords:
    """Reads and writes the files `<problem>.code.json` beside the baselines."""

    def __init__(self, store: Store) -> None:
        self._store, self._stored = store, functools.cache(_stored)

    def file_of(self, case: CaseInfo) -> CodeFile:
        """Returns the file that a case belongs to, empty if there is none; raises FileError if it is bad."""
        return self._stored(self._store.path_for(case, CODE))

    def architectures(self, cases: Sequence[CaseInfo]) -> list[str]:
        """Returns the architectures on record of these cases, the oldest first."""
        names = {name for case in cases for name in self.file_of(case).of(case.id)}
        return sorted(names, key=lambda name: (len(name), name))

    def write(self, found: Iterable[tuple[CaseInfo, Code]], *, replaces: bool) -> list[Path]:
        """Adds what is not on record, or `replaces` what is; returns the files that changed."""
        files = grouped((self._store.path_for(case, CODE), (case.id, code)) for case, code in found)
        written = []
        for path, of_file in sorted(files.items()):
            with atomic_file.locked(path.parent):
                before = _stored(path)
                cases = {case_id: {**before.of(case_id)} for case_id in before.cases}
                for case_id, code in of_file:
                    known = cases.setdefault(case_id, {})
                    new = {name: as_recorded(of) for name, of in code.items() if not of.refused}
                    known |= new if replaces else {name: new[name] for name in new if name not in known}
                after = structs.replace(before, cases=_shortened(cases))
                if after != before:
                    atomic_file.replace(path, rendered(after))
                    written.append(path)
        self._stored.cache_clear()
        return written


def _stored(path: Path) -> CodeFile:
    return held_by(path, load, CodeFile(path.name.rsplit(".", 2)[0]), ["problem"])


def _shortened(cases: Mapping[str, Code]) -> dict[str, RecordedCode]:
    """Returns the cases by name, those that are compiled to the same as another of their variant by that."""
    known: list[tuple[str, Code]] = []
    shortened = {}
    for case_id, code in sorted(cases.items()):
        variant = case_id.rpartition("/")[0]
        like = next((of for of, other in known if other == code and of.rpartition("/")[0] == variant), "")
        shortened[case_id] = RecordedCode(like=like) if like else RecordedCode(dict(sorted(code.items())))
        known += [] if like or not code else [(case_id, code)]
    return shortened


def as_recorded(code: CompiledCode) -> CompiledCode:
    """Returns code without what differs from machine to machine or can be computed; equal kernels once."""
    kernels = (structs.replace(kernel, grid=None, symbol=None, blocks_per_sm=None) for kernel in code.kernels)
    return structs.replace(code, kernels=tuple(dict.fromkeys(kernels)))


def load(path: Path) -> CodeFile:
    """Reads a file; raises FileError with file, field and remedy."""
    try:
        file: CodeFile = read(content_of(path), CodeFile, refuse=lambda fields: of_schema(fields, SCHEMA))
        for case_id, case in file.cases.items():
            if case.like and (case.like not in file.cases or file.cases[case.like].like):
                raise ContentError(f"{case.like!r} has no code itself", where=f"cases[{case_id!r}].like")
    except ContentError as error:
        raise error.of_file(path, RESTORE) from error
    return file


def rendered(file: CodeFile) -> bytes:
    """Returns a file's content: a fact a line, so that a change of one reads as one line."""
    text = json.dumps(msgspec.to_builtins(file), indent=1, ensure_ascii=False)
    return (_ON_A_LINE.sub(lambda found: " ".join(found[0].split()), text) + "\n").encode()


def judged(case: CaseInfo, architecture: str, now: CompiledCode, before: CompiledCode | None) -> Verdict:
    """Says how code compares with the record, or with another revision's."""
    if before is None:
        return Verdict(VerdictKind.NEW, "no machine code is recorded")
    now, before = as_recorded(now), as_recorded(before)  # that of another revision is as it was compiled
    if now.refused:
        kind = VerdictKind.INVALID
        return Verdict(kind, f"compiled before, and does not any more: {now.refused}")
    if before.kernels == now.kernels:
        return Verdict(VerdictKind.SAME_CODE, "the same instructions and resources")
    said = ", ".join(_changes(now.kernels, before.kernels)) or "other instructions, the same resources"
    compiler = f"{before.compiler} → {now.compiler}: " if before.compiler != now.compiler else ""
    chosen = f"autotuned {_chosen(before)} → {_chosen(now)}: " if before.autotuned != now.autotuned else ""
    return Verdict(VerdictKind.CHANGED, f"{compiler}{case.label} {architecture}: {chosen}{said}")


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

    As many new names as are gone are new names of the same kernels, in their order.
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
    said: dict[str, None] = {}
    for kernel, old in _pairs(now, before):
        for field, label, unit in _FACTS:
            was, is_ = getattr(old, field), getattr(kernel, field)
            if was != is_ and not (field == "code_bytes" and kernel.instructions != old.instructions):
                said[f"{label} {was or 0} → {is_ or 0}{unit}"] = None
        counts, old_counts = dict(kernel.instructions), dict(old.instructions)
        kinds = sorted({*old_counts, *counts}, key=lambda kind: (kind != DOUBLES, kind))
        mix = {
            f"{kind.upper() if kind.startswith('fp') else kind} instructions {was} → {is_}": kind
            for kind in kinds
            if (was := old_counts.get(kind, 0)) != (is_ := counts.get(kind, 0))
        }
        said |= {text: None for text, kind in mix.items() if kind == DOUBLES}
        if old.block != kernel.block:
            said[f"block {_sizes(old.block)} → {_sizes(kernel.block)}"] = None
        if old.occupancy != kernel.occupancy:
            before_text = units.share(old.occupancy).removesuffix(" %")
            said[f"occupancy {before_text} → {units.share(kernel.occupancy)}"] = None
        said |= dict.fromkeys(mix)
    yield from said


def _chosen(code: CompiledCode) -> str:
    return ", ".join(sizes_text(settings) for settings in code.autotuned.values()) or "the first"


def _sizes(block: tuple[int, int, int] | None) -> str:
    return "×".join(map(str, block or ()))
