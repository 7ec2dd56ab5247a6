"""Variants that pass the first check and are wrong later: no number of theirs survives."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from fakes import (
    FakeClock,
    FakeEnvironment,
    case_of,
    diagnose_case,
    doubling,
    measuring,
    right,
    run,
    wrong_where,
)

from pytest_gpukern.arrays.compare import POISONS
from pytest_gpukern.check import engine
from pytest_gpukern.check.diagnosis import Fault
from pytest_gpukern.problems.dataset import Datasets
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings

N = 8
CACHES = pytest.mark.parametrize("cache", ["cold", "hot"])


@pytest.fixture(autouse=True)
def look_behind(monkeypatch):
    """Fixes behind which execution the outputs are looked at: the first, unless a test says another."""

    def fix(number):
        monkeypatch.setattr(random, "randrange", lambda count: number)

    fix(0)
    return fix


def diagnosed(gpu, prepare, cache="cold", problem=None, **arguments):
    """What is wrong with a variant; asserts that something is, and that none of its times is kept."""
    case = case_of(prepare, problem=problem, **arguments)
    environment = FakeEnvironment(*[gpu] if gpu else [], settings=measuring(cache=cache))
    result = run(case, environment)
    assert result.correctness is Correctness.INCORRECT
    assert result.measurements == (), "its times are worth nothing"
    return result.diagnosis


def wrong_after_timing(diagnosis):
    first, second = diagnosis.splitlines()[:2]
    assert first == "correct before timing, wrong after it"
    return second


# what is wrong only now and then, or on some of the sets


def triple(a, out):
    np.multiply(a, 3, out=out)


def stop_writing(a, out):
    pass


@CACHES
@pytest.mark.parametrize(
    ("is_wrong", "then", "told"),
    [
        (lambda number, on_its_set, *_: on_its_set % 2 == 0, stop_writing, "out: 8 of 8"),
        (lambda number, on_its_set, on_all, *_: on_all % 2 == 0, stop_writing, "out: 8 of 8"),
        (lambda number, *_: number == 1, triple, "out: wrong values"),
        (lambda number, *_: number == 2, triple, "out: wrong values"),
    ],
    ids=["odd launches on its set", "odd launches on all", "second set", "third set"],
)
def test_what_is_right_in_some_launches_or_on_some_sets_only_is_not_even_timed(
    gpu, timer, events, is_wrong, then, told, cache
):
    assert diagnosed(gpu, wrong_where(is_wrong, then, events), cache).startswith(told)
    assert "timed" not in events


def write_behind_the_end(a, out):
    np.multiply(a, 2, out=out)
    np.lib.stride_tricks.as_strided(out, (N + 1,))[N] = 1


@CACHES
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    ("is_wrong", "then", "told"),
    [
        # Its last launch wrote nothing, or the one that is checked after timing does not.
        (lambda at, number, *timed: timed[-2] and timed[-2] % 2 != at % 2, stop_writing, "out: 8 of 8"),
        (lambda at, number, *timed: timed[-1] and timed[-1] % 2 != at % 2, stop_writing, "out: 8 of 8"),
        (lambda at, number, *timed: timed[-1] and number == at, triple, "out: wrong values"),
        (lambda at, number, *timed: timed[-1] and number == at, write_behind_the_end, "out: out of bounds"),
    ],
    ids=["every second on its set", "every second", "one set", "behind the end"],
)
def test_what_is_wrong_in_some_timed_launches_or_on_one_set_is_incorrect_wherever_we_look(
    gpu, timer, events, look_behind, is_wrong, then, told, at, cache
):
    look_behind((at + 1) % 3)  # in turn, another set is looked at
    found = diagnosed(gpu, wrong_where(functools.partial(is_wrong, at), then, events), cache)
    assert wrong_after_timing(found).startswith(told)


@CACHES
@pytest.mark.parametrize("chosen", [0, 4, 9])
def test_what_is_wrong_only_in_the_first_executions_is_found_behind_the_one_that_was_chosen(
    gpu, timer, events, look_behind, chosen, cache
):
    """At the end all is right again: only a look in between can tell."""
    look_behind(chosen)
    found = diagnosed(gpu, wrong_where(lambda *counts: 0 < counts[-1] <= 12, triple, events), cache)
    assert wrong_after_timing(found).startswith("out: wrong values")
    assert events.count("timed") == 1, "found behind the first batch, which ends with the chosen execution"


@CACHES
@pytest.mark.parametrize("allocates", [False, True])
def test_what_is_wrong_only_while_it_is_timed_is_incorrect(gpu, timer, events, cache, allocates):
    """Right whenever the outputs were poisoned or the inputs filled just now, as before a checked launch."""

    def factor():
        return 2 if events[-1] in ("poison", "fill") else 3

    def writes(a, out):
        return lambda: np.multiply(a, factor(), out=out)

    def returns(a):
        return lambda: factor() * a

    found = diagnosed(gpu, returns if allocates else writes, cache, allocates=allocates)
    assert wrong_after_timing(found).startswith("out: wrong values")


@CACHES
@pytest.mark.parametrize("replays_on", [0, 1, 2])
def test_other_contents_come_to_every_set_after_timing(gpu, timer, events, replays_on, cache):
    answers = []

    def replay(a, out):
        answers.append(answers[-1] if answers else 2 * a)
        out[...] = answers[-1]

    prepare = wrong_where(lambda number, *timed: timed[-1] and number == replays_on, replay, events)
    assert wrong_after_timing(diagnosed(gpu, prepare, cache)).startswith("out: stale result")


# slow launches on the host


@pytest.fixture(params=[1.0, 6.0])
def slow_on_host(request, monkeypatch):
    """Every launch on the host takes so many seconds by the check's clock; six are launched less often."""
    monkeypatch.setattr(engine, "time", FakeClock(tick=int(request.param * 1e9)))


def replays(a, out):
    answers = []

    def launch():
        answers.append(2 * a)
        out[...] = answers[0]

    return launch


def test_what_replays_its_answer_slowly_on_the_host_is_found_after_timing(slow_on_host, timer, events):
    found = diagnosed(None, replays, backend="host")
    assert wrong_after_timing(found).startswith("out: stale result")
    assert "timed" in events, "before it, it was checked on one set only"


def test_what_replays_its_answer_slowly_is_found_at_once_where_nothing_is_timed(slow_on_host):
    case = case_of(replays, "host")
    assert run(case, FakeEnvironment(settings=Settings(requested=True))).correctness is Correctness.INCORRECT
    assert diagnose_case(case, FakeEnvironment()).fault is Fault.STALE_RESULT


def test_a_slow_launch_that_stays_right_is_timed_on_other_contents_and_not_launched_again(
    slow_on_host, timer
):
    given = []

    def noting_contents(a, out):
        def launch():
            given.append(float(a[0]))
            np.multiply(a, 2, out=out)

        return launch

    result = run(case_of(noting_contents, "host"), FakeEnvironment())
    assert result.correctness is Correctness.PASSED
    checked, *timed = given
    assert len(timed) == result.measurements[0].summary.n, "not warmed up"
    assert len(set(timed)) == 1
    assert checked not in timed


@pytest.mark.parametrize("poison", POISONS)
def test_what_a_slow_launch_never_writes_is_found_before_or_after_timing_though_a_poison_is_right(
    slow_on_host, timer, poison, monkeypatch
):
    monkeypatch.setattr(Datasets, "examined", lambda *_: ())  # which refuses an answer that is a constant
    answer = np.full(N, poison, "u4")
    constant = doubling(N, outputs=lambda n: {"out": ((n,), "uint32")}, reference=lambda a: answer)
    assert "out: 8 of 8" in diagnosed(None, lambda out: lambda: None, problem=constant, backend="host")


def seeded(check):
    return doubling(
        N, make_inputs=lambda rng: {"seed": int(rng.integers(1 << 32))}, reference=None, check=check
    )


def test_a_slow_launch_that_ignores_the_seed_it_is_timed_with_is_found_after_timing(slow_on_host, timer):
    kept = []

    def replays_third(seed, out):
        kept.append(seed % 2**20)
        answer = np.float32(kept[min(len(kept), 3) - 1])
        return lambda: out.fill(answer)

    def check(runs):
        different = {float(run.outputs["out"][0]) for run in runs}
        return None if len(different) == len(runs) else "a count came twice"

    found = diagnosed(None, replays_third, problem=seeded(check), backend="host")
    assert wrong_after_timing(found) == "statistics: a count came twice"


# what else is asked again, and what is not blamed


def test_a_statistical_check_is_asked_again_after_timing(gpu, timer):
    asked = []

    def check(runs):
        asked.append(len(runs))
        return "the mean drifted" if len(asked) == 2 else None

    problem = doubling(N, reference=None, check=check)
    found = diagnosed(gpu, right, problem=problem)
    assert asked == [8, 8], "the timed run takes the place of the one with its seed"
    assert found == "correct before timing, wrong after it\nstatistics: the mean drifted"
