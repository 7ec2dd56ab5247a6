"""Reads and writes a file of machine code: what cases are compiled to, one fact a line.

It holds no grids: what they are depends on the machine's memory, and code does not depend on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from pytest_gpukern.values.result import CompiledCode
from pytest_gpukern.values.stored import Stored
from pytest_gpukern.values.untrusted_json import ContentError, content_of, of_schema, read

SCHEMA = 1
RESTORE = (
    "Restore the file from version control, or delete it and record again with "
    "--gpukern-code=sm_90 --gpukern-baseline=create"
)
_ON_A_LINE = re.compile(r"\[\s+(?:\d+,\s+\d+,\s+\d+|\"\w[^\"]*\",\s+\d+)\s+\]")
"""Blocks, and instructions of a class."""

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

    def adding(self, compiled: Iterable[tuple[str, Code]], *, replaces: bool) -> CodeFile:
        """Returns the file with code of cases, by their ids; what is on record stays, or `replaces` it."""
        cases = {case_id: {**self.of(case_id)} for case_id in self.cases}
        for case_id, code in compiled:
            known = cases.setdefault(case_id, {})
            new = {name: as_recorded(of) for name, of in code.items() if not of.refused}
            known |= new if replaces else {name: new[name] for name in new if name not in known}
        return structs.replace(self, cases=_shortened(cases))

    def renaming(self, names: Mapping[str, str]) -> CodeFile:
        code = {names.get(case_id, case_id): self.of(case_id) for case_id in self.cases}
        return structs.replace(self, cases=_shortened(code))

    def without(self, case_ids: Iterable[str]) -> CodeFile:
        """Returns the file without some cases; what was like one of them has its code."""
        kept = sorted(self.cases.keys() - set(case_ids))
        return structs.replace(self, cases=_shortened({case_id: self.of(case_id) for case_id in kept}))


def _shortened(cases: Mapping[str, Code]) -> dict[str, RecordedCode]:
    """Returns the cases by name; one that is compiled like another of its variant refers to that."""
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
    return (_ON_A_LINE.sub(lambda match: " ".join(match[0].split()), text) + "\n").encode()
