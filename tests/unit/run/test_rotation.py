"""Checks buffer sets in turn: which one, when it is poisoned, and when it is brought into the cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.run.case_subject import Rotation

STREAM = "the stream"


def rotation(log, *, sets=3, outputs=1, poisons=True):
    """A rotation whose calls and poisons write `call 0`, `poison 0`, … into the log."""

    def prepared(number):
        def queue_poison(stream):
            assert stream == STREAM
            log.append(f"poison {number}")

        return SimpleNamespace(
            number=number,
            workspace=SimpleNamespace(queue_poison=queue_poison),
            dataset=SimpleNamespace(specs=dict.fromkeys(range(outputs)), updated=()),
        )

    def call(number):
        return lambda: log.append(f"call {number}")

    numbers = range(sets)
    return Rotation(
        [prepared(n) for n in numbers], [call(n) for n in numbers], stream=STREAM, poisons=poisons
    )


def execute(iterations):
    for iteration in iterations:
        if iteration.before is not None:
            iteration.before()
        iteration.run()


@pytest.fixture
def log():
    return []


@given(st.booleans(), st.integers(1, 3), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_sets_take_turns_over_batches_and_each_stay_is_poisoned_and_if_hot_warmed(cold, sets, batches):
    """A batch may begin in the middle of a hot stay, after a flush or another set's work."""
    log = []
    executions, taken = rotation(log, sets=sets), 0
    for count in batches:
        for place, iteration in enumerate(executions.take(count, cold=cold)):
            number = taken // (1 if cold else 8) % sets
            begins = cold or place == 0 or taken % 8 == 0
            before = [*[f"call {number}"] * (not cold), f"poison {number}"] if begins else []
            execute([iteration, iteration.again()])
            assert log == [*before, f"call {number}"] * 2
            log.clear()
            taken += 1
        assert executions.last.number == number


def test_refilled_hot_executions_find_the_poison_each_and_cold_ones_do_so_anyway(log):
    executions = rotation(log)
    execute(executions.take(3, cold=False, refilled=True))
    assert log == ["call 0", *["poison 0", "call 0"] * 3]
    assert executions.take(1, cold=False)[0].before is not None, "the first of a batch"
    assert executions.take(2, cold=False)[1].before is None


@pytest.mark.parametrize("cold", [True, False])
def test_without_poison_the_calls_are_the_same(log, cold):
    """A transfer writes no outputs: what it copies back must be an answer."""
    taken = rotation(log, poisons=False).take(10, cold=cold)
    assert not cold or all(iteration.before is None for iteration in taken)
    execute(taken)
    assert "poison" not in " ".join(log)
    assert log.count("call 0") == (4 if cold else 9)
    assert log.count("call 1") == 3


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_what_an_execution_queues_is_known_and_not_underestimated(log, cold, outputs):
    """One launch a call, one memset an output: a part must fit into the launch queue."""
    for iteration in rotation(log, outputs=outputs).take(24, cold=cold):
        log.clear()
        execute([iteration])
        memsets = outputs * sum(line.startswith("poison") for line in log)
        launches = sum(line.startswith("call") for line in log)
        assert iteration.launches >= memsets + launches
