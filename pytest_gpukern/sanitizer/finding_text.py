"""A finding in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.names import readable
from pytest_gpukern.sanitizer.source_lines import is_python, launch_line, python_line, shown

if TYPE_CHECKING:
    from pytest_gpukern.sanitizer.finding import Access, Finding
    from pytest_gpukern.sanitizer.source_lines import Home

_HAZARD = re.compile(r"(?:Potential )?(.*\bhazard) detected")


def in_words(finding: Finding, home: Home) -> str:
    """What was found and where: of a hazard both accesses, else the thread that is at fault.

    `invalid __global__ write of 4 bytes, out of bounds, in add_flat, block (1, 0, 0), thread (63, 0, 0),
    on_numba.py:31`, or `RAW hazard in tiled: write by thread (31, 0, 0), on_numba.py:24; read by thread …`.
    """
    if finding.accesses:
        return _of_hazard(finding, home)
    said = _said(finding.text)
    if finding.kernel is not None:
        said += f"{',' if ', ' in said or ': ' in said else ''} in {_name(finding.kernel)}"
    parts = [said]
    if finding.block is not None:
        parts.append(f"block {finding.block}")
    if finding.thread is not None:
        parts.append(f"thread {finding.thread}")
    return ", ".join([*parts, python_line(finding, home)])


def _said(text: str) -> str:
    """`Invalid … of size 4 bytes is out of bounds` as `invalid … of 4 bytes, out of bounds`."""
    said = text.replace(" of size ", " of ").replace(" bytes is ", " bytes, ").rstrip(".")
    return said[:1].lower() + said[1:] if said[1:2].islower() else said


def _of_hazard(finding: Finding, home: Home) -> str:
    hazard = _HAZARD.match(finding.text)
    said = hazard[1] if hazard is not None else _said(finding.text)
    kernel = f" in {_name(finding.kernel)}" if finding.kernel is not None else ""
    parts = [_of_access(access, home) for access in finding.accesses]
    if finding.block is not None:
        parts.append(f"block {finding.block}")
    if not any(is_python(access.place) and access.place.line for access in finding.accesses):
        parts.append(launch_line(finding, home))
    return f"{said}{kernel}: {'; '.join(parts)}"


def _of_access(access: Access, home: Home) -> str:
    by = f" by thread {access.thread}" if access.thread is not None else ""
    at = f", {shown(access.place, home)}" if access.place.file and access.place.line else ""
    return f"{access.what.lower()}{by}{at}"


def _name(kernel: str) -> str:
    return readable(kernel).partition("(")[0]
