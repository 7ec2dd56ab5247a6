"""What a test found out so far: its result, to which each check and each measurement adds."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.values.result import Correctness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpukern.check.diagnosis import Diagnosis
    from pytest_gpukern.values.result import OutputError, Result


class Outcome:
    """One test's.

    Attributes:
        result: what it found out so far; None before anything ran.
    """

    def __init__(self) -> None:
        self.result: Result | None = None

    def update(self, **changes: Any) -> None:
        """Replaces fields of the result."""
        assert self.result is not None
        self.result = dataclasses.replace(self.result, **changes)

    def add_note(self, note: str) -> None:
        """Adds a note to the result."""
        assert self.result is not None
        self.update(notes=(*self.result.notes, note))

    def record_check(self, diagnosis: Diagnosis | None, errors: dict[str, OutputError]) -> None:
        """Notes what a check found, if there is a result, and fails the test where that is a fault.

        Args:
            diagnosis: what is wrong, or None; what was found wrong before stays so.
            errors: output → its distance from the reference.
        """
        if self.result is not None:
            failed = diagnosis is not None or self.result.correctness is Correctness.INCORRECT
            self.update(
                correctness=Correctness.INCORRECT if failed else Correctness.PASSED,
                diagnosis=diagnosis.message if diagnosis else self.result.diagnosis,
                errors={**self.result.errors, **errors},
            )
        if diagnosis is not None:
            pytest.fail(f"INCORRECT: {diagnosis.message}", pytrace=False)

    @contextmanager
    def incorrect_fails(self) -> Iterator[None]:
        """Records what is raised as incorrect, and fails the test with its diagnosis."""
        __tracebackhide__ = True
        try:
            yield
        except IncorrectError as error:
            try:
                self.record_check(error.diagnosis, {})
            except pytest.fail.Exception as failure:
                raise failure from None  # what timing went through before says nothing
