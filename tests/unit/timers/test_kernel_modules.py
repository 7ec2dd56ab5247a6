"""Tests finding the module that a kernel was launched from, by the order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.timers.cupti.machine_code import KernelModules

SMALL, LARGE, NEWER = 1, 2, 3


class Observed:
    """Observations in short: a number is a module that is loaded, a text the handle of kernel `k`."""

    def __init__(self):
        self.modules = KernelModules()
        self.handles = {}

    def __call__(self, *events, own=True):
        self.modules.begin(own=own)
        for event in events:
            if isinstance(event, int):
                self.modules.loaded(event)
            else:
                self.modules.launched("k", self.handles.setdefault(event, len(self.handles)))
        for event in events:
            if isinstance(event, int):
                self.modules.has(event, "k")
        self.modules.end()
        origin = self.modules.of("k")
        return origin.modules if origin.each else any_of(*origin.modules)


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


def test_a_new_handle_is_of_the_module_of_which_none_was_seen(observed):
    assert observed(SMALL, "a", LARGE, "b") == {SMALL, LARGE}, "it was launched from both"
    assert observed("a") == {SMALL}
    assert observed("b") == {LARGE}


def test_modules_that_others_loaded_count_and_their_launches_do_not(observed):
    assert observed(SMALL, "a") == {SMALL}
    assert observed(LARGE, "b", own=False) == {SMALL}
    assert observed("b") == {LARGE}


def test_a_module_may_be_launched_for_the_first_time_in_a_later_observation(observed):
    observed(SMALL, own=False)
    assert observed("a") == {SMALL}
    observed(LARGE, NEWER, own=False)
    assert observed("b") == any_of(SMALL, LARGE, NEWER)


def test_a_handle_that_may_be_of_two_new_modules_is_of_none_for_sure(observed):
    assert observed(SMALL, LARGE, "a") == any_of(SMALL, LARGE)
    assert observed(NEWER, "b") == any_of(SMALL, LARGE, NEWER)


def test_a_second_handle_of_a_module_may_belong_to_any(observed):
    """The driver has handles of two kinds, functions and kernels; and a module may have come unobserved."""
    assert observed(SMALL, "a", "b") == any_of(SMALL)
    observed(LARGE, "c")
    assert observed("b") == any_of(SMALL, LARGE)
    assert observed("a") == {SMALL}


def test_a_handle_that_is_given_out_again_is_of_the_new_module(observed):
    """An unloaded module had it; nothing reports the unloading."""
    assert observed(SMALL, "a") == {SMALL}
    assert observed(NEWER, "a") == {NEWER}
    assert observed("a") == {NEWER}


def test_a_handle_stays_what_it_is_when_a_module_is_loaded_behind_its_launch(observed):
    observed(SMALL, "a")
    assert observed("a", LARGE) == {SMALL}
    assert observed("b") == {LARGE}


def test_a_handle_stays_what_it_is_when_the_new_module_has_its_own(observed):
    observed(SMALL, "a")
    assert observed(LARGE, "a", "b", "a") == {SMALL, LARGE}
    assert observed("a") == {SMALL}


def test_a_million_launches_take_no_more_memory_than_one(observed):
    observed.modules.begin(own=True)
    for module in (SMALL, LARGE):
        observed.modules.loaded(module)
        for _ in range(1000):
            for handle in (5, 6):
                observed.modules.launched("k", handle)
    assert observed.modules._events == [SMALL, ("k", 5), ("k", 6), LARGE, ("k", 5), ("k", 6)]
    observed.modules.begin(own=True)
    observed.modules.launched("k", 5)
    assert observed.modules._events == [("k", 5)]


def test_what_was_not_ended_is_forgotten(observed):
    observed.modules.begin(own=True)
    observed.modules.loaded(SMALL)
    observed.modules.launched("k", 1)
    observed.modules.begin(own=True)
    observed.modules.end()
    assert observed.modules.of("k").modules == set()


LIBRARY = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 5), min_size=1, max_size=6)), max_size=12)
"""Observations: whether each is timed, and from which of six modules it launches."""


@given(LIBRARY)
def test_the_module_is_known_if_a_library_launches_what_it_loads(observations):
    """As CuPy does, and the driver where it loads lazily: loaded before the first launch, at once."""
    observed, there, timed = Observed(), set(), set()
    for own, used in observations:
        events = []
        for module in used:
            events += [] if module in there else [module]
            there.add(module)
            events.append(f"handle of {module}")
        found = observed(*events, own=own)
        timed = set(used) if own else timed
        assert found == (timed or any_of(*there))
