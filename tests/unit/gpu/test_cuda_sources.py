"""Tests that CUDA C++ in the suites' files compiles, if there is a compiler: nvcc needs no GPU."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[3] / "suites"


def sources():
    """(file, first kernel) → text, of every string with a kernel in it."""
    found = {}
    for path in sorted(SUITES.glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
                kernel = node.value.split("__global__ void ", 1)[1].split("(", 1)[0]
                found[f"{path.parent.name}/{path.stem}.{kernel}"] = node.value
    return found


SOURCES = sources()


def test_there_are_sources_to_compile():
    assert {name.partition("/")[2].partition(".")[0] for name in SOURCES} >= {"on_cupy", "on_pycuda"}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles_for_hopper(tmp_path, name):
    text = SOURCES[name]
    path = tmp_path / "kernel.cu"
    path.write_text(text if "extern" in text else f'extern "C" {{\n{text}\n}}\n', encoding="utf-8")
    command = ["nvcc", "--cubin", "-arch=sm_90", "-DTILE=16", "-Werror=all-warnings", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "curand_kernel.h: No such file" in done.stderr:
        pytest.skip("nvcc's toolkit has no curand_kernel.h")
    assert done.returncode == 0, done.stderr
