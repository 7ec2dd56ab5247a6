"""Finds and runs `cuobjdump` and `nvdisasm`, and says in each error which of them it was."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path
from typing import NamedTuple, NoReturn

from pytest_gpukern.gpu.programs import cuda_program
from pytest_gpukern.values.untrusted_json import bounded, printable

_REMEDY = "pip install --upgrade 'pytest-gpukern[code]'"
_TIMEOUT_S = 120.0
_OLDEST = (13, 4, 92)  # of cuda-toolkit 13.4.2: 13.4.49, of 13.4.1, says "Unknown option 'annotate'"


class DisassemblyError(Exception):
    """Says in one line why the facts about a kernel cannot be read."""


class ToolsMissing(DisassemblyError):  # noqa: N818
    """Says that a tool of NVIDIA's is not installed, and how to install it."""


class Tool(NamedTuple):
    """Runs `cuobjdump` or `nvdisasm`.

    Attributes:
        path: where it was found.
        version: as it prints it, such as `13.5.37`.
    """

    path: str
    version: str

    def output(self, *arguments: str) -> str:
        """Returns what it prints; raises DisassemblyError with its own message if it refuses."""
        try:
            done = subprocess.run(
                [self.path, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error).encode()).decode(errors="replace").strip()
            options = " ".join(argument for argument in arguments if argument.startswith("-"))
            raise self._error(f"fails with {options}: {said}") from error
        return done.stdout.decode(errors="replace")

    def not_understood(self, printed: str) -> NoReturn:
        """Raises DisassemblyError about an output of another form than those that were tried."""
        raise self._error(f"printed what we do not understand: {printed.strip()}")

    def _error(self, problem: str) -> DisassemblyError:
        text = bounded(printable(" ".join(problem.split())), 400)
        remedy = f"{Path(self.path).name} 13.5.37 was tried: {_REMEDY}"
        return DisassemblyError(f"{self.path} ({self.version}) {text}. {remedy}")


@functools.cache
def tool(name: str) -> Tool:
    """Returns `cuobjdump` or `nvdisasm`: of NVIDIA's wheels, else of CUDA_HOME, CUDA_PATH or PATH.

    Raises:
        ToolsMissing: it is in none of these.
        DisassemblyError: it does not tell its version.
    """
    path = cuda_program(name)
    if path is None:
        places = "NVIDIA's wheels, CUDA_HOME, CUDA_PATH or PATH"
        raise ToolsMissing(f"{name} is not in {places}; kernels are read by it: {_REMEDY}")
    found = Tool(path, "version unknown")
    printed = found.output("--version")
    version = re.search(r"\bV(\d+\.\d+\.\d+)\b", printed)
    return found._replace(version=version[1]) if version else found.not_understood(printed)


def require_tools() -> None:
    """Raises `DisassemblyError` where a tool is missing, or is older than `nvdisasm -annotate`."""
    for name in ("cuobjdump", "nvdisasm"):
        found = tool(name)
        if tuple(map(int, found.version.split("."))) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise DisassemblyError(
                f"{found.path} is of version {found.version}, and {oldest} is needed: {_REMEDY}"
            )
