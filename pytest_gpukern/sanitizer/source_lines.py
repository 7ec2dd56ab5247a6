"""Which line of Python a finding belongs to, and by which of the ways to tell that."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.package import FOLDER

if TYPE_CHECKING:
    from pytest_gpukern.sanitizer.finding import Finding, Place

_OURS = str(FOLDER)


@dataclass(frozen=True)
class Home:
    """What is known of a test without any stack.

    Attributes:
        what: `variant` or `test`.
        file: where it is written.
        line: where it begins, counted from 1.
        root: folder that paths are shown relative to.
    """

    what: str
    file: str
    line: int
    root: str


def python_line(finding: Finding, home: Home) -> str:
    """Where to look, the best that is known.

    `on_numba.py:31` is in the kernel itself, by its line information; `launched at …` is the innermost frame
    of the user's when it was launched; `variant at …` or `test at …` is where that begins. A line of a kernel
    that is no Python, such as `kernel.cu:7`, comes first.
    """
    kernel = next((place for place in finding.device if place.file and place.line), None)
    if kernel is not None and is_python(kernel):
        return shown(kernel, home)
    python = launch_line(finding, home)
    return python if kernel is None else f"{shown(kernel, home)}, {python}"


def launch_line(finding: Finding, home: Home) -> str:
    """Where the kernel was launched from, else where the variant or the test begins."""
    launch = next((place for place in finding.host if _is_the_users(place)), None)
    if launch is not None:
        return f"launched at {shown(launch, home)}"
    return f"{home.what} at {_relative(home.file, home.root)}:{home.line}"


def has_python_line(finding: Finding) -> bool:
    """Whether a finding tells the line of Python without the stack of its launch."""
    return any(is_python(place) and place.line for place in finding.device)


def is_python(place: Place) -> bool:
    """Whether a place is in a file of Python."""
    return place.file is not None and place.file.endswith(".py")


def _is_the_users(place: Place) -> bool:
    """Whether a frame is Python that neither this package nor an installed one brings."""
    if not is_python(place) or not place.line or place.file is None:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    suites = place.file.startswith(f"{_OURS}/suites/")  # which come with the package
    return suites or not place.file.startswith((*(f"{folder}/" for folder in installed), f"{_OURS}/"))


def shown(place: Place, home: Home) -> str:
    """A place as `file:line`, the file relative to the root of the tests where it is below that."""
    return f"{_relative(place.file or '', home.root)}:{place.line}"


def _relative(file: str, root: str) -> str:
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
