"""Changing a baseline file without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.baseline import schema
from pytest_gpukern.values import atomic_file as file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpukern.baseline.record import Baseline


def rewrite(path: Path, change: Callable[[Baseline], Baseline]) -> Baseline:
    """Replaces the content of a file by what `change` makes of it; one left without records is removed.

    Args:
        path: the file.
        change: is given the content as it is on the disk, while no other run writes there.

    Raises:
        FileError: it cannot be read or written; it is as it was.
    """
    schema.load(path)  # before the lock, which would make a folder
    with file.locked(path.parent):
        before = schema.load(path)
        changed = change(before).referenced()
        if changed == before:
            pass
        elif changed.cases:
            file.replace(path, schema.render(changed))
        else:
            file.remove(path)
    return changed
