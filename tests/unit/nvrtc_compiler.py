"""Compiles kernels with NVRTC where it is installed; needs no driver."""

from __future__ import annotations

import pytest


def known_architectures():
    """What this machine's NVRTC compiles for; empty without one."""
    try:
        from cuda.bindings import nvrtc

        _, found = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):  # cuda-pathfinder's error for a missing library is a RuntimeError
        return ()
    return tuple(found)


KNOWN = known_architectures()
ARCHITECTURES = [each for each in (75, 90, 120) if each in KNOWN]
"""The oldest, one between and the newest: our sources differ from 100 on, and nowhere else."""
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
