"""Tests that our kernels and the suites' compile, and that ceilings contain the work that we count."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from nvrtc_compiler import ARCHITECTURES, KNOWN, compiled, needs_nvrtc

from pytest_gpukern.gpu.ceiling_kernels import CHAINS, UNROLLED, WORDS, copy_source, fma_source
from pytest_gpukern.gpu.runtime import cuda_source

SUITES = Path(__file__).parents[3] / "suites"
INSTRUCTIONS = {
    "float": "fma.rn.f32",
    "double": "fma.rn.f64",
    "unsigned": "mad.lo.u32",
    "half2x": "fma.rn.f16x2",
    "float2x": "fma.rn.f32x2",
}


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(architecture):
    files = ("clock_probe.cu", "launch.cu", "timing.cu", "hash.cu", "selftest_spin.cu")
    sources = [copy_source(), *map(cuda_source, files)]
    sources += [fma_source(c_type) for c_type in INSTRUCTIONS if c_type != "float2x" or architecture >= 100]
    for source in sources:
        assert compiled(source, f"sm_{architecture}").startswith(b"\x7fELF")


@needs_nvrtc
def test_cuda_in_the_suites_files_compiles():
    """But for what includes a header, which NVRTC lacks."""
    seen = set()
    for path in SUITES.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if "__global__" in text and "#include" not in text:
                seen.add(path.stem)
                assert compiled(f'#define TILE 16\nextern "C++" {{{text}}}', "sm_90"), path
    assert seen >= {"on_cupy", "on_pycuda"}


@needs_nvrtc
@pytest.mark.parametrize("c_type", INSTRUCTIONS)
def test_the_loop_holds_every_multiply_add_that_is_counted(c_type):
    architecture = min(found for found in KNOWN if found >= (100 if c_type == "float2x" else 75))
    ptx = compiled(fma_source(c_type), f"compute_{architecture}").decode()
    loops = re.findall(r"^(\$L\w+):(.*?)bra\S*\s+\1;", ptx, re.MULTILINE | re.DOTALL)
    (loop,) = (body for _, body in loops)
    instruction = re.escape(INSTRUCTIONS[c_type])
    assert len(re.findall(rf"^\s*{instruction}\s", loop, re.MULTILINE)) == CHAINS * UNROLLED
    others = len(re.findall(r";$", loop, re.MULTILINE)) - CHAINS * UNROLLED
    assert others < 0.01 * CHAINS * UNROLLED, "the loop's own instructions take issue slots too"
    assert "st.global" in ptx


@needs_nvrtc
def test_a_thread_of_the_copy_loads_all_its_words_of_16_bytes_before_it_stores_them():
    ptx = compiled(copy_source(), f"compute_{KNOWN[0]}").decode()
    accesses = re.findall(r"\b(ld|st)\.global\S*\.v4\.", ptx)
    assert accesses == ["ld"] * WORDS + ["st"] * WORDS
