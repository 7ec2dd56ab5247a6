"""The program compute-sanitizer: where it is, and how it is told what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpukern.sanitizer.judge import ERRORS_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME = "compute-sanitizer"
WHEEL = "nvidia-cuda-sanitizer-api"
REMEDY = f"pip install {WHEEL} of the driver's CUDA version, or put the CUDA toolkit's {NAME} on PATH"
PADDING_BYTES = 512
"""Behind each allocation, to memcheck alone: what runs over the end of one does not land in the next."""
MOST_RECORDS = 100
_ASKING_S = 30.0

_OF_TOOL = {
    # Errors of API calls are exceptions in Python already, and libraries cause some while they look around.
    "memcheck": ("--report-api-errors", "no", "--padding", str(PADDING_BYTES)),
    # Hazards name threads and blocks, analyses the two places that race.
    "racecheck": ("--racecheck-report", "all"),
    "initcheck": (),
    "synccheck": (),
}


class ToolMissingError(Exception):
    """There is no compute-sanitizer that runs here; the message says what was seen and what to do."""


@dataclass(frozen=True)
class Tool:
    """An installed compute-sanitizer.

    Attributes:
        path: of the program.
        version: as it tells it, such as `2025.3.1.0`.
    """

    path: str
    version: str

    def command(self, tool: str, *, xml: Path, log: Path, host_stacks: bool = True) -> tuple[str, ...]:
        """What stands before a command that `tool` is to look at; it leaves its records in `xml`.

        Args:
            tool: such as `memcheck`.
            xml: where its records go.
            log: where it says how many there are.
            host_stacks: whether it keeps the host's stack of each call that a record may be about.
        """
        return (
            self.path,
            *("--tool", tool, "--error-exitcode", str(ERRORS_FOUND), "--check-exit-code", "no"),
            *("--xml", "--save", str(xml), "--log-file", str(log)),
            *("--print-limit", str(MOST_RECORDS), "--strip-paths", "no", "--demangle", "no"),
            *("--target-processes", "all", "--show-backtrace", "yes" if host_stacks else "device"),
            *_OF_TOOL[tool],
        )


def find_tool(environ: Mapping[str, str] = os.environ) -> Tool:
    """The compute-sanitizer of this environment's wheels, of CUDA_HOME or CUDA_PATH, or on PATH.

    Raises:
        ToolMissingError: there is none, or it does not run.
    """
    path = next(_candidates(environ), None)
    if path is None:
        raise ToolMissingError(f"{NAME} is not installed; {REMEDY}")
    return Tool(path, _version(path))


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    folders = [folder for root in wheel_folders() for folder in _bins(root)]
    toolkits = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    folders += [Path(toolkit) / "bin" for toolkit in toolkits]
    for folder in folders:
        file = folder / NAME
        if file.is_file() and os.access(file, os.X_OK):
            yield str(file)
    found = shutil.which(NAME, path=environ.get("PATH"))
    if found is not None:
        yield found


def wheel_folders() -> list[Path]:
    """Folders that NVIDIA's wheels install into."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    return [Path(entry) for entry in (spec.submodule_search_locations or ())] if spec else []


def _bins(root: Path) -> Iterable[Path]:
    """`nvidia/cu13/bin`, and `nvidia/cuda_sanitizer_api/bin` of the wheels before."""
    return sorted(folder for folder in root.glob("*/bin") if folder.is_dir())


def _version(path: str) -> str:
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissingError(f"{path} does not run: {error}; {REMEDY}") from error
    found = re.search(r"Version (\S+)", asked.stdout)
    if asked.returncode or found is None:
        said = " ".join((asked.stdout + asked.stderr).split())[:200] or "nothing"
        raise ToolMissingError(
            f"{path} --version ended with status {asked.returncode}, and said {said}; {REMEDY}"
        )
    return found[1]
