"""Finds the program compute-sanitizer, and says how it and a process under it are started."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpukern.gpu.programs import cuda_program
from pytest_gpukern.values.options import UNDER_SANITIZER

NAME = "compute-sanitizer"
WHEEL = "nvidia-cuda-sanitizer-api"
REMEDY = f"pip install {WHEEL} for the driver's CUDA version, or put the CUDA toolkit's {NAME} on PATH"
PADDING_BYTES = 512
"""Free bytes behind each allocation under memcheck: a write over its end does not land in the next."""
MOST_RECORDS = 100
ERRORS_FOUND = 86
"""The exit status that we tell the tool to end with if it found something. pytest uses 0 to 5; by default the
tool ends with 0 whatever it found."""
RECORDS, LOG = "records.xml", "log"
"""Files that a tool writes: its records, and what it says of them."""
_ASKING_S = 30.0

_OF_TOOL = {
    # Errors of API calls are exceptions in Python already, and libraries cause some on purpose.
    "memcheck": ("--report-api-errors", "no", "--padding", str(PADDING_BYTES)),
    # Hazards name threads and blocks, analyses the two lines that race; `all` reports both.
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": (),
    "synccheck": (),
}


class ToolMissingError(Exception):
    """Says why no compute-sanitizer runs here, and what to do."""


@dataclass(frozen=True)
class Tool:
    """Holds the path of an installed compute-sanitizer, and its version such as `2025.3.1.0`."""

    path: str
    version: str

    def command(self, tool: str, folder: Path) -> tuple[str, ...]:
        """Returns what to put before a command to run it under `tool`, which leaves its files in `folder`.

        It keeps no stacks of the host: they cost memcheck minutes if cuBLAS is loaded beside PyTorch.
        """
        return (
            self.path,
            *("--tool", tool, "--error-exitcode", str(ERRORS_FOUND), "--check-exit-code", "no"),
            *("--xml", "--save", str(folder / RECORDS), "--log-file", str(folder / LOG)),
            *("--print-limit", str(MOST_RECORDS), "--strip-paths", "no", "--demangle", "no"),
            *("--target-processes", "all", "--show-backtrace", "device"),
            *_OF_TOOL[tool],
        )


def environment_under(tool: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a process under a tool: no pool hides an allocation's end, lines are kept.

    CuPy's pool has no variable; `child_setup` switches it off. nvcc's `-lineinfo` changes no machine code.
    """
    flags = environ.get("PYCUDA_DEFAULT_NVCC_FLAGS", "").split()
    return {
        UNDER_SANITIZER: tool,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT": "0",
        "NUMBA_CUDA_MEMORY_MANAGER": "default",
        "PYCUDA_DEFAULT_NVCC_FLAGS": " ".join(dict.fromkeys([*flags, "-lineinfo"])),
    }


def find_tool(environ: Mapping[str, str] = os.environ) -> Tool:
    """Finds the compute-sanitizer of this environment's wheels, of CUDA_HOME or CUDA_PATH, or on PATH.

    Raises:
        ToolMissingError: there is none, or it does not run.
    """
    path = cuda_program(NAME, environ)
    if path is None:
        raise ToolMissingError(f"{NAME} is not installed; {REMEDY}")
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissingError(f"{path} does not run: {error}; {REMEDY}") from error
    version = re.search(r"Version (\S+)", asked.stdout)
    if asked.returncode or version is None:
        said = " ".join((asked.stdout + asked.stderr).split())[:200] or "nothing"
        raise ToolMissingError(
            f"{path} --version ended with status {asked.returncode}, and said {said}; {REMEDY}"
        )
    return Tool(path, version[1])
