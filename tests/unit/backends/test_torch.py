"""PyTorch's backend, on a stand-in for PyTorch: no copies, the timed stream, memory given back."""

from __future__ import annotations

from types import SimpleNamespace

import host_cuda
import numpy as np
import pytest

from pytest_gpukern import Output
from pytest_gpukern.backends import torch as torch_module


class Tensor(host_cuda.OnDevice):
    """A tensor with PyTorch's flags."""

    requires_grad = conjugated = negated = False

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return self.negated


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, as far as its backend uses it."""
    host_cuda.install(monkeypatch, torch_module)
    events = []

    def as_tensor(array, device):
        assert device == "cuda"
        return host_cuda.contents_of(array, Tensor)

    return host_cuda.put_module(
        monkeypatch,
        "torch",
        __version__="2.11",
        events=events,
        as_tensor=as_tensor,
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: True)),
        cuda=SimpleNamespace(
            init=lambda: events.append("init"),
            ExternalStream=lambda handle: SimpleNamespace(cuda_stream=handle),
            stream=lambda stream: host_cuda.Entered(f"{stream.cuda_stream:#x}", events),
            empty_cache=lambda: events.append("emptied"),
        ),
    )


def test_pytorchs_stream_is_the_runtimes_and_current_during_a_launch(torch):
    backend = torch_module.TorchBackend()
    assert backend.stream.cuda_stream == backend.timed_stream.handle == host_cuda.STREAM
    with backend.current():
        torch.events.append("launch")
    assert torch.events == ["init", "enter 0x5100", "launch", "leave 0x5100"]


@pytest.fixture
def workspace(torch):
    return torch_module.TorchBackend().workspace({}, {"y": Output((3,), "float32")})


def test_a_tensor_with_values_of_its_own_is_adopted(workspace):
    tensor = np.ones(3, "float32").view(Tensor)
    workspace.arrays["y"][:] = 5
    assert workspace.fetch("y").tolist() == [5, 5, 5]
    place = workspace.adopt("y", tensor)
    assert (place.shape, place.dtype, place.strides) == ((3,), np.dtype("float32"), None)
    assert workspace.fetch("y").tolist() == [1, 1, 1]


@pytest.mark.parametrize("flag", ["requires_grad", "conjugated", "negated"])
def test_a_tensor_that_is_computed_when_it_is_read_or_drags_a_graph_along_is_not_adopted(workspace, flag):
    tensor = np.ones(3, "float32").view(Tensor)
    setattr(tensor, flag, True)
    assert workspace.adopt("y", tensor) is None


def test_a_pytorch_without_cuda_says_so(torch):
    torch.backends.cuda.is_built = lambda: False
    with pytest.raises(RuntimeError, match=r"torch 2\.11 was built without CUDA"):
        torch_module.TorchBackend()
