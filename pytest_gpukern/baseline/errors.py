"""What is said of a baseline file that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)


class BaselineError(Exception):
    """A baseline file that cannot be read or written, or a name that must not become one.

    Attributes:
        path: the file.
        where: the field inside it, such as `records['…'].epochs[0].opened`, or None.
        problem: what is wrong.
        remedy: what to do about it.
    """

    def __init__(self, path: Path, problem: str, remedy: str, *, where: str | None = None) -> None:
        self.path, self.where, self.problem, self.remedy = path, where, problem, remedy
        field_text = f"{where}: " if where else ""
        super().__init__(f"{path}: {field_text}{problem}. {remedy}.")
