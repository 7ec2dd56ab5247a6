"""By what a process knows that it runs under a tool of compute-sanitizer, and that its memory must show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "GPUKERN_UNDER_SANITIZER"
"""Environment variable: the tool and the process that wants to know, as in `memcheck:12345`."""


def sanitizing_tool(environ: Mapping[str, str] = os.environ) -> str | None:
    """The tool that looks at this process, such as `racecheck`, or None."""
    return environ.get(VARIABLE, "").partition(":")[0] or None


def asking_process(environ: Mapping[str, str] = os.environ) -> int | None:
    """The process with which this one has to end, or None."""
    number = environ.get(VARIABLE, "").partition(":")[2]
    return int(number) if number.isdecimal() else None
