"""Lists the kinds of `--gpukern-fail-on`, one row each: what fails a run besides INCORRECT and INVALID.

Options, their page and the gate read this table; it loads nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_gpukern.values.verdict_table import VerdictKind


class FailureRow(NamedTuple):
    """Describes one kind. Verdicts name theirs in `verdict_table.StateRow.fail_on`.

    Attributes:
        findings: the kinds of findings that fail their test.
        needs_record: whether there is nothing to say without records.
        of_run: whether it fails the run as a whole, or a test for what it promised, if the run measures.
    """

    fails: str
    findings: tuple[str, ...] = ()
    needs_record: bool = True
    of_run: bool = False


def with_verdicts(rows: Mapping[str, FailureRow], kinds: Iterable[VerdictKind]) -> dict[str, FailureRow]:
    """Returns the rows, and one for each verdict that names a kind without a row."""
    words = {kind.row.fail_on: f"a time is {kind}" for kind in kinds if kind.row.fail_on}
    return dict(rows) | {word: FailureRow(fails) for word, fails in words.items() if word not in rows}


_EXPLAINED = {
    "slower": FailureRow("a time is SLOWER, and three recorded sessions or more say so; the default"),
    "tail": FailureRow("some calls became slow beside a median that did not", findings=("tail",)),
    "resources": FailureRow("a kernel takes more registers or memory", findings=("resources",)),
    "accuracy": FailureRow(
        "an error grew, or bits changed with the same machine code",
        findings=("accuracy", "bits", "determinism"),
    ),
    "memory": FailureRow("a test keeps memory of the device", findings=("memory",), needs_record=False),
    "host": FailureRow("times of host variants count as those of kernels do"),
    "new": FailureRow("nothing is recorded"),
    "uncomparable": FailureRow("the record was made under other conditions"),
    "undecided": FailureRow("the data cannot tell, or a time is SLOWER than fewer than three sessions"),
    "unchecked": FailureRow("nothing compared an output", needs_record=False),
    "no-gpu": FailureRow("the run measured nothing on a GPU", needs_record=False, of_run=True),
    "missing": FailureRow("a case on record did not run, or was not compiled", of_run=True),
    "weaker": FailureRow("a check is weaker than before, or its test is gone", ("weaker",), of_run=True),
}
FAILURES = with_verdicts(_EXPLAINED, VerdictKind)
BY_DEFAULT = ("slower",)
BY_DEFAULT_IN_CI = (*BY_DEFAULT, "no-gpu", "missing")
"""Under `CI`, of a run that compares a GPU's times with a record or a revision; and of `gpukern validate`."""
NOTHING = "none"
"""Clears the default and what stands before it, but `of_run`: who accepts a slowdown still wants a GPU."""
KIND_OF_FINDING = {finding: kind for kind, row in FAILURES.items() for finding in row.findings}
