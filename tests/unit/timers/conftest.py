"""CUPTI as it was recorded on a GPU, for what reads it."""

import pytest
from cupti_replay import Replay, forget


@pytest.fixture
def replay(monkeypatch):
    made = Replay()
    made.install(monkeypatch)
    yield made
    assert made.unused
    forget()
