"""A value of a file that is read, with the way to it: every check names the field that fails it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_gpukern.values.untrusted_json import FileError

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict


_MOST = 2**63
RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)


@dataclass(frozen=True)
class Node:
    """A value in the file and the way to it, for messages."""

    value: Any
    path: Path
    where: str = ""

    def __getitem__(self, name: str) -> Node:
        where = f"{self.where}.{name}" if self.where else name
        mapping = self.mapping()
        if name not in mapping:
            raise FileError(self.path, "is missing", RESTORE, where=where)
        return Node(mapping[name], self.path, where)

    def optional(self, name: str) -> Node:
        """The member, or None in its place."""
        where = f"{self.where}.{name}" if self.where else name
        return Node(self.mapping().get(name), self.path, where)

    def fail(self, expected: str, *, found: object = None) -> NoReturn:
        """Raises FileError: what was expected here, and what was found."""
        text = repr(self.value if found is None else found)
        text = text if len(text) <= 60 else text[:57] + "…"
        problem = f"expected {expected}, found {text}"
        raise FileError(self.path, problem, RESTORE, where=self.where or None)

    def mapping(self) -> JsonDict:
        """The value, an object."""
        return self.value if isinstance(self.value, dict) else self.fail("an object")

    def members(self) -> list[tuple[str, Node]]:
        """An object's members by name."""
        return [
            (name, Node(value, self.path, f"{self.where}[{name!r}]"))
            for name, value in self.mapping().items()
        ]

    def items(self) -> list[Node]:
        """The items of a list that is not empty."""
        if not isinstance(self.value, list) or not self.value:
            self.fail("a list with at least one entry")
        return [Node(item, self.path, f"{self.where}[{i}]") for i, item in enumerate(self.value)]

    def some_items(self) -> list[Node]:
        """The items of a list, or none where there is none."""
        return [] if self.value is None or self.value == [] else self.items()

    def some_members(self) -> list[tuple[str, Node]]:
        """An object's members, or none where there is none."""
        return [] if self.value is None else self.members()

    def as_object(self, columns: tuple[str, ...]) -> Node:
        """A row as an object: column → value, without what is null."""
        if not isinstance(self.value, list):
            self.fail("a list of values, one a column")
        if len(self.value) > len(columns):
            self.fail(f"{len(columns)} values at most, one a column", found=len(self.value))
        named = {name: value for name, value in zip(columns, self.value, strict=False) if value is not None}
        return Node(named, self.path, self.where)

    def others(self, *known: str) -> JsonDict:
        """The members of an object that this release does not know."""
        return {name: value for name, value in self.mapping().items() if name not in known}

    def text(self) -> str:
        """The value, a text that is not empty."""
        return self.value if isinstance(self.value, str) and self.value else self.fail("a text")

    def optional_text(self) -> str | None:
        """As `text`, or None."""
        return None if self.value is None else self.text()

    def one_of(self, known: Container[str], where: str) -> str:
        """A key of a table, which stands under `where`."""
        text = self.text()
        return text if text in known else self.fail(f"one of the keys under {where}")

    def optional_extent(self) -> tuple[int, int, int] | None:
        """Three whole numbers: x, y, z."""
        if self.value is None:
            return None
        if not isinstance(self.value, list) or len(self.value) != 3:
            self.fail("three whole numbers")
        x, y, z = (item.integer(at_least=0) for item in self.items())
        return x, y, z

    def time(self) -> str:
        """An ISO 8601 time with its offset."""
        text = self.text()
        try:
            aware = datetime.fromisoformat(text).tzinfo is not None
        except ValueError:
            aware = False
        return text if aware else self.fail("a time such as 2026-11-20T10:00:00Z")

    def integer(self, *, at_least: int) -> int:
        """A whole number."""
        fine = isinstance(self.value, int) and not isinstance(self.value, bool) and self.value >= at_least
        if not fine:
            self.fail(f"a whole number of at least {at_least}")
        return int(self.value) if self.value < _MOST else self.fail("a whole number of 64 bits")

    def number(self) -> float:
        """A finite number that is not negative."""
        if not isinstance(self.value, (int, float)) or isinstance(self.value, bool) or self.value < 0:
            self.fail("a number that is not negative")
        return float(self.value)

    def optional_integer(self, *, at_least: int) -> int | None:
        """A whole number, or None."""
        return None if self.value is None else self.integer(at_least=at_least)

    def optional_number(self) -> float | None:
        """As `number`, or None."""
        return None if self.value is None else self.number()
