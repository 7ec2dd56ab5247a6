"""Looks through a project's folders, and says by its sources which backends it uses."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_gpukern.values.backend_table import BACKENDS

_USE = re.compile(
    rb"\.(?:variant|wrong)\(\s*[\"'](\w+)[\"']|^[ \t]*(?:import|from)[ \t]+(?:(?!numba\b)(\w+)"
    rb"|(numba)(?:\.cuda\b| import (?:\([^)]*|[^\n#]*)\bcuda\b))",  # Numba compiles for the host, too
    re.MULTILINE,
)


def folders_of(project: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields each folder and the names of its files; no hidden folders, and no installed packages."""
    others = {"__pycache__", "node_modules", "site-packages"}
    for folder, below, names in os.walk(project):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in others)
        yield Path(folder), sorted(names)


def backends_in(project: Path) -> dict[str, Path]:
    """Maps each backend that a Python file imports, or has a variant of, to the first such file."""
    used = dict[str, Path]()
    for folder, names in itertools.islice(folders_of(project), 2000):  # somebody's home has many more
        for path in (folder / name for name in names if name.endswith(".py")):
            with contextlib.suppress(OSError):
                found = {name.decode() for names in _USE.findall(path.read_bytes()) for name in names}
                used = dict.fromkeys(found & BACKENDS.keys(), path) | used
    return used
