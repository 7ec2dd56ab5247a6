"""What Triton's stand-in for the device refuses before it replaces anything."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from host_cuda import put_module

from pytest_gpukern.code import triton as module


def test_a_pytorch_without_cuda_is_refused_with_the_remedy(monkeypatch):
    """In such a build even a view of a tensor on a device fails."""
    monkeypatch.setattr(module, "require", lambda *_: None)
    put_module(monkeypatch, "triton", knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=False)))
    for name in ("runtime", "runtime.autotuner", "runtime.jit"):
        put_module(monkeypatch, f"triton.{name}", driver=None, Autotuner=None, JITFunction=None)
    built = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: False))
    put_module(monkeypatch, "torch", __version__="2.14+cpu", backends=built)
    with pytest.raises(ImportError, match=r"torch 2\.14\+cpu was built without CUDA.* --gpukern-backend"):
        module.TritonStandIn().install(print)
