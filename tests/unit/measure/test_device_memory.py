"""Tests when device memory can be asked for, and from which size on a leak is one; the libraries are fakes.

Whole runs with leaks are in `tests/plugin/test_memory.py`.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_gpukern.measure import device_memory
from pytest_gpukern.measure.device_memory import MemoryObserver
from pytest_gpukern.measure.observers import ObservedCall

MIB = 2**20


class Library:
    """One library whose arrays are `alive`: address → bytes, and which `told` of a peak."""

    def __init__(self):
        self.alive, self.told = {}, 0
        self.released = 0

    def live_bytes(self):
        return sum(self.alive.values())

    def peak_bytes(self):
        return self.told

    def reset_peak(self):
        self.told = 0

    def release(self):
        self.released += 1


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(device_memory, "accounts", lambda: [made])
    monkeypatch.setattr(device_memory, "checked", lambda call: None)
    monkeypatch.setattr(device_memory, "gc", SimpleNamespace(collect=lambda: None))
    return made


def observer(*, measures=True):
    return MemoryObserver("memory", SimpleNamespace(measures=measures))


def finished(watch, *, passed=True, let_go=lambda: None):
    """(before, peak, after, kept) in bytes, and what was found."""
    seen = watch.end_test(passed=passed, let_go=let_go)
    return tuple(seen.values.values()), seen.finding and seen.finding.text


def test_a_librarys_own_peak_counts(library):
    watch = observer()
    watch.begin_test()
    library.told = 100 * MIB
    assert finished(watch)[0] == (0, 100 * MIB, 0, 0)
    assert library.released == 2, "caches were given back before and after"


@pytest.mark.parametrize("before", [0, 5 * MIB])
@pytest.mark.parametrize(("left", "told"), [(8 * MIB, "8 MiB"), (MIB, "1 MiB"), (MIB - 1, None)])
def test_a_leak_of_a_mebibyte_is_reported_for_the_test_that_made_it_and_no_other(library, before, left, told):
    library.alive[0] = before
    watch = observer()
    watch.begin_test()
    library.alive[1] = left
    after, kept = before + left, left if told else 0
    figures, text = finished(watch)
    assert figures == (before, after, after, kept)
    start = f"the test leaves {told} of device memory allocated after its teardown: something"
    assert text is None if told is None else text.startswith(start)
    watch.begin_test()
    assert finished(watch) == ((after, after, after, 0), None)


def test_the_first_test_of_a_process_is_followed_though_nothing_can_be_asked_before_it(library, monkeypatch):
    """Before there is a context the driver refuses to be asked."""
    monkeypatch.setattr(device_memory, "accounts", list)
    watch = observer()
    watch.begin_test()
    monkeypatch.setattr(device_memory, "accounts", lambda: [library])
    library.alive[1] = 8 * MIB
    assert finished(watch)[0] == (0, 8 * MIB, 8 * MIB, 8 * MIB)


def test_a_test_without_a_context_has_no_figures(monkeypatch):
    monkeypatch.setattr(device_memory, "accounts", list)
    watch = observer()
    watch.begin_test()
    assert watch.end_test(passed=True, let_go=lambda: None) is None


def test_nothing_is_told_where_nothing_is_measured_on_a_gpu(library):
    watch = observer(measures=False)
    watch.begin_test()
    assert watch.observe(ObservedCall(on_gpu=True), None) is None
    assert watch.end_test(passed=True, let_go=lambda: None) is None


@pytest.mark.parametrize("refused", ["live_bytes", "release", "reset_peak"])
def test_a_test_in_its_own_context_is_not_followed_if_a_library_refuses(library, monkeypatch, refused):
    """Numba raises RuntimeError in a context that is not the primary one."""

    def refuse():
        raise RuntimeError("Numba cannot operate on non-primary CUDA context")

    watch = observer()
    watch.begin_test()
    batches = watch.observe(ObservedCall(on_gpu=True), None)
    monkeypatch.setattr(library, refused, refuse)
    batches.after(None, last=True)
    if refused != "reset_peak":
        assert watch.end_test(passed=True, let_go=lambda: None) is None
    watch.begin_test()
    assert watch.end_test(passed=True, let_go=lambda: None) is None
