"""The kernels of the ceilings compile for what NVRTC knows, and hold the work that is counted."""

from __future__ import annotations

import re

import pytest

from pytest_gpukern.gpu import ceiling_source
from pytest_gpukern.gpu.ceiling_source import CHAINS, UNROLLED, WORDS, fma_source

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 103, 120)

INSTRUCTIONS = {
    "float": "fma.rn.f32",
    "double": "fma.rn.f64",
    "unsigned": "mad.lo.u32",
    "half2x": "fma.rn.f16x2",
    "float2x": "fma.rn.f32x2",
}


def known_architectures():
    """What this machine's NVRTC compiles for; empty without one."""
    try:
        from cuda.bindings import nvrtc

        _, found = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):  # cuda-pathfinder's error for a missing library is a RuntimeError
        return ()
    return tuple(found)


KNOWN = known_architectures()
needs_nvrtc = pytest.mark.skipif(not KNOWN, reason="NVRTC is not installed")


def compiled(source, target):
    """Machine code for a target like `sm_90`, PTX for one like `compute_90`; needs no driver."""
    from cuda.bindings import nvrtc

    def call(name, *arguments):
        status, *found = getattr(nvrtc, name)(*arguments)
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, f"{name}: {status.name}"
        return found[0] if found else None

    program = call("nvrtcCreateProgram", source.encode(), b"kernels.cu", 0, [], [])
    options = [f"--gpu-architecture={target}".encode(), b"--std=c++17"]
    call("nvrtcCompileProgram", program, len(options), options)
    kind = "CUBIN" if target.startswith("sm_") else "PTX"
    content = b" " * call(f"nvrtcGet{kind}Size", program)
    call(f"nvrtcGet{kind}", program, content)
    return content


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(architecture):
    if architecture not in KNOWN:
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    sources = [ceiling_source.COPY, ceiling_source.FILL, ceiling_source.LAUNCH]
    sources += [fma_source(c_type) for c_type in INSTRUCTIONS if c_type != "float2x" or architecture >= 100]
    for source in sources:
        assert compiled(source, f"sm_{architecture}").startswith(b"\x7fELF")


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
    ptx = compiled(ceiling_source.COPY, f"compute_{KNOWN[0]}").decode()
    accesses = re.findall(r"\b(ld|st)\.global\S*\.v4\.", ptx)
    assert accesses == ["ld"] * WORDS + ["st"] * WORDS
