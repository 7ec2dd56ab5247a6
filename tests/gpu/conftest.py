"""Tests here need a real GPU; without one each says why it did not run."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    from pytest_gpukern.device import missing_gpu_reason

    reason = missing_gpu_reason(os.environ)
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))


@pytest.fixture
def plugin_option():
    """For an inner pytest, where the package is on the path but not installed."""
    from importlib.metadata import entry_points

    return () if entry_points(group="pytest11", name="gpukern") else ("-p", "pytest_gpukern.plugin")
