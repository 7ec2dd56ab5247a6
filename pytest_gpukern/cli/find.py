"""Finding what a command line names: baseline files below folders, and cases by their ids."""

from __future__ import annotations

import difflib
import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SKIPPED = ("__pycache__", "node_modules", "site-packages")


class NoMatchError(Exception):
    """A name that nothing matches; the message says what comes near."""


def baseline_files(path: Path) -> list[Path]:
    """A file itself; of a folder its baseline files, and those in folders below it called `baselines`.

    A baseline file is called `<name>.<device model>.json`.
    """
    if not path.is_dir():
        return [path]
    found = []
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _SKIPPED)
        here = Path(folder)
        if here == path or here.name == "baselines":
            found += [here / name for name in sorted(names) if _is_baseline(name)]
    return found


def _is_baseline(name: str) -> bool:
    return name.endswith(".json") and name.count(".") >= 2 and not name.startswith(".")


def matching(ids: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The ids that are, or match, one of the patterns, in order.

    Raises:
        NoMatchError: a pattern matches none.
    """
    known = list(dict.fromkeys(ids))
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in known if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise NoMatchError(f"no case {pattern!r} among {len(known)}; {_near(pattern, known)}")
        chosen |= found
    return [name for name in known if name in chosen]


def _near(pattern: str, known: Sequence[str]) -> str:
    close = (
        difflib.get_close_matches(pattern, known, n=3, cutoff=0.5)
        or [name for name in known if pattern.strip("*") in name][:3]
    )
    if close:
        return f"near it: {', '.join(close)}"
    return f"for example {known[0]}" if known else "there are none"
