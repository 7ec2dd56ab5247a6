"""The CUDA layer in host memory."""

import host_cuda
import pytest


@pytest.fixture
def runtime(monkeypatch):
    return host_cuda.install(monkeypatch)


@pytest.fixture
def driver(runtime):
    """The driver that every call goes to."""
    return runtime.driver
