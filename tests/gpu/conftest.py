"""Tests here need a real GPU; without one each says why it did not run."""

import os

import pytest


def pytest_collection_modifyitems(items):
    from pytest_gpukern.device import missing_gpu_reason

    reason = missing_gpu_reason(os.environ)
    for item in items:
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))
