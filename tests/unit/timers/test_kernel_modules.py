"""Tests finding the module that a kernel was launched from, by its handle and what was loaded before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.timers.cupti.machine_code import KernelModules

SMALL, LARGE, NEWER = 1, 2, 3


class Observed:
    """One test in short: numbers are modules that it loads first, texts the handles of kernel `k`."""

    def __init__(self):
        self.modules = KernelModules()
        self.handles = {}

    def __call__(self, *events, then=()):
        self.modules.begin()
        for module in events:
            if isinstance(module, int):
                self.modules.has(module, "k")
        handles = [event for event in events if isinstance(event, str)]
        self.modules.launched(("k", self.handles.setdefault(each, len(self.handles))) for each in handles)
        origin = self.modules.of("k")
        for module in then:
            self.modules.has(module, "k")
        return origin.modules if origin.from_all else any_of(*origin.modules)


def any_of(*modules):
    """Some of these modules, unknown which."""
    return frozenset({"any of", *modules})


ANY, BOTH = any_of(SMALL, LARGE), {SMALL, LARGE}


@pytest.mark.parametrize(
    "tests",
    [
        # A kernel is from the only module that has it; the first test does not even launch it.
        [((SMALL,), any_of(SMALL)), (("a",), {SMALL})],
        # A new handle is of the only module of which none was seen; the last test launches from both.
        [((SMALL, "a"), {SMALL}), ((LARGE, "b"), {LARGE}), (("a",), {SMALL}), (("a", "b"), BOTH)],
        # A handle that may be of two new modules is of none for sure.
        [((SMALL, LARGE, "a"), ANY), ((NEWER, "b"), any_of(SMALL, LARGE, NEWER))],
        # A second handle may belong to any: the driver has handles of functions and of kernels, and a module
        # may have come unobserved.
        [((SMALL, "a", "b"), any_of(SMALL)), ((LARGE, "c"), {LARGE}), (("b",), ANY), (("a",), {SMALL})],
        # A handle may be an unloaded module's that was given to a new one. Nothing reports the unloading, so
        # it may as well be of the old module, and we know no more later.
        [((SMALL, "a"), {SMALL}), ((NEWER, "a"), any_of(SMALL, NEWER)), (("a",), any_of(SMALL, NEWER))],
        # It stays what it is when the new module has its own.
        [((SMALL, "a"), {SMALL}), ((LARGE, "a", "b"), BOTH), (("a",), {SMALL})],
    ],
)
def test_the_modules_of_a_kernel_are_told_by_its_handles(tests):
    observed = Observed()
    assert [observed(*events) for events, _ in tests] == [modules for _, modules in tests]
    assert observed.modules.of("another").modules == set()


def test_a_module_that_a_test_loads_behind_its_call_has_another_handle():
    """As corner cases do: the module of the call was there, so its handle could not be given out again."""
    observed = Observed()
    assert observed(SMALL, "a", then=[LARGE]) == {SMALL}
    assert observed("a") == {SMALL}
    assert observed("b") == {LARGE}


def test_what_was_launched_is_forgotten_and_handles_are_not():
    observed = Observed()
    observed(SMALL, "a")
    observed(LARGE, "b")
    observed.modules.begin()
    assert observed.modules.of("k").modules == {SMALL, LARGE}
    assert observed("a") == {SMALL}


CALLS = st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=12)
"""Calls: from which of six modules each launches."""


@given(CALLS, st.sets(st.integers(0, 5)))
def test_a_module_is_only_named_if_it_is_the_launched_one(calls, elsewhere):
    """A library loads at the first use, in these calls or, for some modules, in code that nobody observes."""
    observed, there, one_by_one = Observed(), set(), not elsewhere
    for used in calls:
        loaded = (used | elsewhere) - there
        there |= loaded
        one_by_one &= len(loaded) <= 1
        found = observed(*loaded, *(f"handle of {module}" for module in used))
        assert found == used or found == any_of(*there)
        assert found == used or not one_by_one
