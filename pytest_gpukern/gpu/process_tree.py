"""Who descends from whom among this machine's processes, as far as /proc tells."""

from __future__ import annotations

import os
import re
from pathlib import Path

_PROC = Path("/proc")


def process_id(text: str) -> int | None:
    """Return the process id that a text is, None for any other text."""
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else None


def ancestors(pid: int | None = None) -> tuple[int, ...]:
    """Return the parent, grandparent, … of a process (this one for None), nearest first.

    Without /proc only this process's parent is known. Processes of another PID namespace do not appear.
    """
    found: list[int] = []
    current = os.getppid() if pid is None else parent(pid)
    while current and current not in found:
        found.append(current)
        current = parent(current)
    return tuple(found)


def parent(pid: int) -> int:
    """Return a process's parent, 0 where unknown."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    # "pid (name) state ppid …": the name may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def is_alive(pid: int) -> bool:
    """Return whether a process of this PID namespace exists; a zombie counts as dead."""
    if pid <= 0:
        return False
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        pass
    else:
        return stat.rpartition(")")[2].split()[:1] != ["Z"]
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
