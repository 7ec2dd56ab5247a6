"""The device's memory around a test, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.report import units
from pytest_gpukern.report.layout import wrapped

if TYPE_CHECKING:
    from pytest_gpukern.report.layout import Line
    from pytest_gpukern.values.result import Result


def device_memory(result: Result, *, width: int) -> list[Line]:
    """What was in use before, at most and after, and what the test keeps; nothing where nobody looked."""
    memory = result.memory
    if memory is None:
        return []
    text = (
        f"{result.case.id} · device memory in use: {units.size(memory.before_bytes)} before, "
        f"{units.size(memory.peak_bytes)} at most, {units.size(memory.after_bytes)} after"
    )
    kept = f", of which the test keeps {units.size(memory.kept_bytes)}" if memory.kept_bytes else ""
    return wrapped(text + kept, width)
