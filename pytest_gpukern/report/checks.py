"""What each case was checked at besides its own point, and how far its outputs are the same each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.report.layout import Line, wrapped
from pytest_gpukern.values.result import Correctness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpukern.values.result import Result


def checks(results: Sequence[Result], *, width: int) -> list[Line]:
    """A line a case that has something to tell, followed by an empty one; nothing where none has.

    Args:
        results: of one problem.
        width: of the terminal, in columns.
    """
    lines = []
    for result in results:
        text = _told(result)
        if text and result.correctness is not Correctness.INCORRECT:
            lines += wrapped(f"{result.case.id} · {text}", width, indent="  ")
    return [*lines, Line("")] if lines else []


def _told(result: Result) -> str:
    by_kind: dict[str, list[str]] = {}
    for name, error in result.errors.items():
        if error.determinism is not None:
            by_kind.setdefault(error.determinism, []).append(name)
    told = [f"{', '.join(names)} {kind}" for kind, names in by_kind.items()]
    if result.corners:
        told.append(f"checked at {', '.join(result.corners)} too")
    if result.seed is not None:
        told.append(f"seed {result.seed}")
    return "; ".join(told)
