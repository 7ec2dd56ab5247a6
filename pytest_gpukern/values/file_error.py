"""What is said of a file that cannot be used: which it is, where in it, what is wrong and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.values.printable import bounded, printable

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_WHERE = 200
_LONGEST_PROBLEM = 400


class FileError(Exception):
    """A file that cannot be read or written; its message is one line that a terminal can be sent.

    Attributes:
        path: the file.
        where: the field inside it, such as `results[3].case.id`, or None.
        problem: what is wrong.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, problem: str, remedy: str, *, where: str | None = None) -> None:
        self.path, self.where, self.problem, self.remedy = path, where, problem, remedy
        field_text = f"{bounded(where, _LONGEST_WHERE)}: " if where else ""
        super().__init__(printable(f"{path}: {field_text}{bounded(problem, _LONGEST_PROBLEM)}. {remedy}."))
