"""Finds programs of the CUDA toolkit, such as compute-sanitizer and nvdisasm."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def cuda_program(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the path of a program of this environment's wheels, of CUDA_HOME or CUDA_PATH, or on PATH."""
    folders: dict[Path, None] = {}
    for root in wheel_folders():  # `nvidia/cu13/bin`, and `nvidia/cuda_sanitizer_api/bin` of older wheels
        folders |= dict.fromkeys(sorted(root.glob("cu[0-9]*/bin"), reverse=True))
        folders |= dict.fromkeys(sorted(root.glob("*/bin")))
    toolkits = [Path(environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    searched = [*map(str, (*folders, *toolkits)), *filter(None, [environ.get("PATH")])]
    return shutil.which(name, path=os.pathsep.join(searched))


def wheel_folders() -> list[Path]:
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    return [Path(entry) for entry in (spec.submodule_search_locations or ())] if spec else []
