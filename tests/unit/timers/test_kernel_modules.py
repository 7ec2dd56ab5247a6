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


@pytest.fixture
def observed():
    return Observed()


def test_a_kernel_is_from_the_only_module_that_has_it(observed):
    assert observed(SMALL) == any_of(SMALL), "it was not even launched"
    assert observed("a") == {SMALL}
    assert observed.modules.of("another").modules == set()


def test_a_new_handle_is_of_the_only_module_of_which_none_was_seen(observed):
    assert observed(SMALL, "a") == {SMALL}
    assert observed(LARGE, "b") == {LARGE}
    assert observed("a") == {SMALL}
    assert observed("a", "b") == {SMALL, LARGE}, "it was launched from both"


def test_a_handle_that_may_be_of_two_new_modules_is_of_none_for_sure(observed):
    assert observed(SMALL, LARGE, "a") == any_of(SMALL, LARGE)
    assert observed(NEWER, "b") == any_of(SMALL, LARGE, NEWER)


def test_a_second_handle_of_a_module_may_belong_to_any(observed):
    """The driver has handles of two kinds, functions and kernels; and a module may have come unobserved."""
    assert observed(SMALL, "a", "b") == any_of(SMALL)
    observed(LARGE, "c")
    assert observed("b") == any_of(SMALL, LARGE)
    assert observed("a") == {SMALL}


def test_a_handle_may_be_an_unloaded_modules_that_was_given_to_a_new_one(observed):
    """Nothing reports the unloading, so it may as well be of the old module."""
    assert observed(SMALL, "a") == {SMALL}
    assert observed(NEWER, "a") == any_of(SMALL, NEWER)
    assert observed("a") == any_of(SMALL, NEWER), "we know no more later"


def test_a_module_that_a_test_loads_behind_its_call_has_another_handle(observed):
    """As corner cases do: the module of the call was there, so its handle could not be given out again."""
    assert observed(SMALL, "a", then=[LARGE]) == {SMALL}
    assert observed("a") == {SMALL}
    assert observed("b") == {LARGE}


def test_a_handle_stays_what_it_is_when_the_new_module_has_its_own(observed):
    observed(SMALL, "a")
    assert observed(LARGE, "a", "b") == {SMALL, LARGE}
    assert observed("a") == {SMALL}


def test_what_was_launched_is_forgotten_and_handles_are_not(observed):
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
