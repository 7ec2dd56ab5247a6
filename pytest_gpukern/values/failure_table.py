"""Lists the kinds of `--gpukern-fail-on`, one row each: what fails a run besides INCORRECT and INVALID.

Options, their page and the gate read this table; it loads nothing but the standard library.
"""

from __future__ import annotations

from typing import NamedTuple


class FailureRow(NamedTuple):
    """Describes one kind. That of a verdict has the verdict's name.

    Attributes:
        fails: what fails, in words.
        findings: the kinds of findings that fail their test.
        needs_record: whether there is nothing to say without records.
        of_run: whether it fails the run as a whole, if that measures, instead of a test.
    """

    fails: str
    findings: tuple[str, ...] = ()
    needs_record: bool = True
    of_run: bool = False


FAILURES: dict[str, FailureRow] = {
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
    "missing": FailureRow("a case on record did not run", of_run=True),
}
BY_DEFAULT = ("slower",)
BY_DEFAULT_IN_CI = (*BY_DEFAULT, "no-gpu", "missing")
"""Under `CI`, of a run that compares a GPU's times with a record or a revision; and of `gpukern validate`."""
NOTHING = "none"
"""Stands alone, and clears the default."""

KIND_OF_FINDING = {finding: kind for kind, row in FAILURES.items() for finding in row.findings}
