"""Checks buffer sets in turn: which one, when it is poisoned, and when it is brought into the cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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


def test_cold_executions_go_to_each_set_in_turn_with_poison_ahead(log):
    execute(rotation(log).take(4, cold=True))
    assert log == [
        *("poison 0", "call 0", "poison 1", "call 1"),
        *("poison 2", "call 2", "poison 0", "call 0"),
    ]


def test_the_turn_goes_on_over_batches(log):
    executions = rotation(log)
    for _ in range(4):
        execute(executions.take(1, cold=True))
    assert [line for line in log if "call" in line] == ["call 0", "call 1", "call 2", "call 0"]


def test_hot_executions_stay_for_eight_behind_one_that_warms_and_is_then_poisoned(log):
    execute(rotation(log).take(24, cold=False))
    one_stay = lambda n: [f"call {n}", f"poison {n}", *[f"call {n}"] * 8]  # noqa: E731
    assert log == [*one_stay(0), *one_stay(1), *one_stay(2)]


def test_refilled_hot_executions_find_the_poison_each_and_cold_ones_do_so_anyway(log):
    executions = rotation(log)
    execute(executions.take_refilled(3, cold=False))
    assert log == ["call 0", *["poison 0", "call 0"] * 3]
    assert executions.take(1, cold=False)[0].before is not None, "the first of a batch"
    assert executions.take(2, cold=False)[1].before is None


def test_the_first_hot_execution_of_a_batch_is_warmed_whoever_ran_before(log):
    """A batch may begin in the middle of a stay, after a flush or another set's work."""
    executions = rotation(log)
    execute(executions.take(3, cold=False))
    log.clear()
    execute(executions.take(7, cold=False))
    assert log == ["call 0", "poison 0", *["call 0"] * 5, "call 1", "poison 1", "call 1", "call 1"]


def test_one_set_alone_is_warmed_and_poisoned_anew_all_the_same(log):
    execute(rotation(log, sets=1).take(9, cold=False))
    assert log == ["call 0", "poison 0", *["call 0"] * 8, "call 0", "poison 0", "call 0"]


def test_a_hot_execution_may_be_executed_again_with_all_that_comes_before(log):
    (iteration,) = rotation(log).take(1, cold=False)
    execute([iteration, iteration.again()])
    assert log == ["call 0", "poison 0", "call 0"] * 2


@pytest.mark.parametrize("cold", [True, False])
def test_without_poison_the_calls_are_the_same(log, cold):
    """A transfer writes no outputs: what it copies back must be an answer."""
    execute(rotation(log, poisons=False).take(10, cold=cold))
    assert "poison" not in " ".join(log)
    assert log.count("call 0") == (4 if cold else 9)
    assert log.count("call 1") == 3


def test_a_cold_execution_that_is_not_poisoned_has_nothing_before_it(log):
    assert all(iteration.before is None for iteration in rotation(log, poisons=False).take(3, cold=True))


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


@pytest.mark.parametrize(
    ("cold", "count", "last"), [(True, 1, 0), (True, 5, 1), (False, 8, 0), (False, 9, 1)]
)
def test_the_set_of_the_last_execution_is_known(log, cold, count, last):
    executions = rotation(log)
    executions.take(count, cold=cold)
    assert executions.last.number == last
