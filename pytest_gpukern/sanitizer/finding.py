"""Holds what a tool of compute-sanitizer has found, and says it in one line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pytest_gpukern.gpu.kernel_facts import readable

Index = tuple[int, int, int]
"""Index of a thread in its block, or of a block in its grid: x, y, z."""


@dataclass(frozen=True)
class Place:
    """Says where something is in a source, as far as a stack frame tells."""

    function: str | None = None
    file: str | None = None
    line: int | None = None

    @property
    def is_python(self) -> bool:
        return bool(self.line and self.file and self.file.endswith(".py"))


@dataclass(frozen=True)
class Access:
    """Holds one of the two accesses of a hazard.

    Attributes:
        what: the tool's word for it: `Write`, `Read`.
        thread: its index in the block, where told.
        place: where in the kernel's source.
    """

    what: str
    thread: Index | None = None
    place: Place = Place()


@dataclass(frozen=True)
class ToolFinding:
    """Holds one record of a tool.

    Attributes:
        text: what it says, such as "Invalid __global__ write of size 4 bytes is out of bounds".
        kernel: the kernel's name as it was compiled; None where no kernel is named.
        block: its index in the grid, where told.
        thread: its index in the block, where told; for a hazard, that of the earlier access.
        accesses: both accesses of a hazard, the earlier one first; else empty.
        device: where in the kernels' sources, the faulting place first.
    """

    text: str
    kernel: str | None = None
    block: Index | None = None
    thread: Index | None = None
    accesses: tuple[Access, ...] = ()
    device: tuple[Place, ...] = ()


_HAZARD = re.compile(r"(?:Potential )?(.*\bhazard) detected")


def in_words(finding: ToolFinding, home: Home) -> str:
    """Says what was found and where: both accesses of a hazard, else the thread that is at fault.

    `invalid __global__ write of 4 bytes, out of bounds, in add_flat, block (1, 0, 0), thread (63, 0, 0),
    on_numba.py:31`, or `RAW hazard in tiled: write by thread (31, 0, 0), on_numba.py:24; read by thread …`.
    """
    said, hazard = _said(finding.text), _HAZARD.match(finding.text)
    kernel = f" in {readable(finding.kernel).partition('(')[0]}" if finding.kernel is not None else ""
    block = [f"block {finding.block}"] if finding.block is not None else []
    if finding.accesses:
        begins = [] if any(access.place.is_python for access in finding.accesses) else [_home_line(home)]
        parts = [*(_of_access(access, home) for access in finding.accesses), *block, *begins]
        return f"{hazard[1] if hazard is not None else said}{kernel}: {'; '.join(parts)}"
    comma = "," if kernel and (", " in said or ": " in said) else ""
    thread = [f"thread {finding.thread}"] if finding.thread is not None else []
    return ", ".join([f"{said}{comma}{kernel}", *block, *thread, python_line(finding, home)])


def _said(text: str) -> str:
    """Shortens `Invalid … of size 4 bytes is out of bounds` to `invalid … of 4 bytes, out of bounds`."""
    said = text.replace(" of size ", " of ").replace(" bytes is ", " bytes, ").rstrip(".")
    return said[:1].lower() + said[1:] if said[1:2].islower() else said


def _of_access(access: Access, home: Home) -> str:
    by = f" by thread {access.thread}" if access.thread is not None else ""
    at = f", {_shown(access.place, home)}" if access.place.file and access.place.line else ""
    return f"{access.what.lower()}{by}{at}"


@dataclass(frozen=True)
class Home:
    """Says where a test is written, which is known without any stack.

    Attributes:
        what: `variant` or `test`.
        place: where it begins.
        root: folder that paths are shown relative to.
    """

    what: str
    place: Place
    root: str


def python_line(finding: ToolFinding, home: Home) -> str:
    """Says where to look, the best that is known.

    `on_numba.py:31` is in the kernel itself, by its line information. `variant at …` or `test at …` is where
    that begins. A line of a kernel that is not Python, such as `kernel.cu:7`, comes first.
    """
    kernel = next((place for place in finding.device if place.file and place.line), None)
    if kernel is not None and kernel.is_python:
        return _shown(kernel, home)
    begins = _home_line(home)
    return begins if kernel is None else f"{_shown(kernel, home)}, {begins}"


def _home_line(home: Home) -> str:
    return f"{home.what} at {_shown(home.place, home)}"


def _shown(place: Place, home: Home) -> str:
    """Shows a place as `file:line`, the file relative to the root of the tests where it is below that."""
    path = Path(place.file or "")
    return f"{path.relative_to(home.root) if path.is_relative_to(home.root) else path.name}:{place.line}"
