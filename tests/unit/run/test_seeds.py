"""Checks contents beyond those that a check and timing take, as a run asks for."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, diagnose_case, doubling, measuring, right, run

from pytest_gpukern import Axis
from pytest_gpukern.check.diagnosis import Fault
from pytest_gpukern.problems.dataset import Datasets
from pytest_gpukern.run import case_subject
from pytest_gpukern.values.result import Correctness
from pytest_gpukern.values.settings import Settings


def on_seeds(seeds, **settings):
    return FakeEnvironment(settings=Settings(asked=True, seeds=seeds, **settings))


def wrong_on(bad, problem):
    """Makes a variant wrong on one content, which it knows by its first element."""
    known = problem.inputs({"n": 8}, bad)["a"][0]

    def prepare(a, out):
        return lambda: np.multiply(a, 3 if a[0] == known else 2, out=out)

    return prepare


@pytest.mark.parametrize(("seeds", "launches"), [(None, 3), (1, 3), (2, 3), (5, 5)])
def test_a_case_is_launched_on_as_many_contents_as_were_asked_for_and_three_at_least(seeds, launches):
    seen = []

    def noted(a, out):
        return lambda: seen.append(a.tobytes()) or np.multiply(a, 2, out=out)

    assert run(case_of(noted, "host"), on_seeds(seeds)).correctness is Correctness.PASSED
    assert len(set(seen)) == len(seen) == launches


def test_a_failure_on_a_later_seed_names_the_seed():
    problem = doubling()
    case = case_of(wrong_on(3, problem), "host", problem)
    assert run(case, on_seeds(3)).correctness is Correctness.PASSED
    result = run(case, on_seeds(4))
    assert result.correctness is Correctness.INCORRECT
    assert result.diagnosis.startswith("contents 3 of the seed: out: wrong values: 8 of 8")
    assert diagnose_case(case, on_seeds(4)).fault is Fault.WRONG_VALUES


def test_a_result_kept_from_the_seed_before_is_stale():
    def keeps_its_third(a, out):
        seen = []

        def launch():
            seen.append(2 * a)
            out[...] = seen[min(len(seen), 3) - 1]

        return launch

    diagnosis = run(case_of(keeps_its_third, "host"), on_seeds(4)).diagnosis
    assert diagnosis.startswith("contents 3 of the seed: out: stale result")


def test_scalars_of_a_seed_are_prepared_with():
    problem = doubling(
        make_inputs=lambda rng, n: {"a": rng.random(n).astype(np.float32), "k": int(rng.integers(1, 9))},
        reference=lambda a, k: a.astype(np.float64) * k,
    )

    def scaled(a, k, out):
        return lambda: np.multiply(a, k, out=out)

    assert run(case_of(scaled, "host", problem), on_seeds(9)).correctness is Correctness.PASSED


def test_extra_seeds_do_not_change_the_contents_that_timing_begins_on(gpu, timer, monkeypatch):
    began = []

    def measure_scopes(sets, *rest):
        began.append([prepared.dataset.seed_offset for prepared in sets])
        for prepared in sets:
            prepared.launch()
        return ()

    monkeypatch.setattr(case_subject, "measure_scopes", measure_scopes)
    for seeds in (None, 7):
        environment = FakeEnvironment(gpu, settings=measuring(seeds=seeds))
        assert run(case_of(right), environment).correctness is Correctness.PASSED
    assert began[0] == began[1]


@pytest.mark.parametrize(("seeds", "groups"), [(4, 1), (5, 2), (12, 3)])
def test_a_statistical_check_judges_whole_groups(seeds, groups):
    judged = []
    problem = doubling(
        axes={"n": Axis((8,), (8,))},
        reference=None,
        check=lambda runs: judged.append([run.inputs["a"].tobytes() for run in runs]),
        check_seeds=4,
    )
    assert run(case_of(right, "host", problem), on_seeds(seeds)).correctness is Correctness.PASSED
    assert [len(group) for group in judged] == [4] * groups
    assert len({content for group in judged for content in group}) == 4 * groups


def test_a_complaint_of_a_later_group_fails_the_case():
    calls = []
    problem = doubling(
        axes={"n": Axis((8,), (8,))},
        reference=None,
        check=lambda runs: "too even" if calls.append(runs) or len(calls) == 2 else None,
        check_seeds=4,
    )
    result = run(case_of(right, "host", problem), on_seeds(8))
    assert result.diagnosis == "contents 7 of the seed: statistics: too even"


def test_a_seed_of_the_run_is_kept_and_its_bits_are_not(gpu, timer):
    """Bits are compared with those of recorded sessions, which had other inputs."""
    own = run(case_of(right), FakeEnvironment(gpu, settings=measuring()))
    environment = FakeEnvironment(gpu, settings=measuring(seed=7))
    environment.datasets = Datasets(seed=7)
    other = run(case_of(right), environment)
    assert (own.seed, other.seed) == (None, 7)
    assert own.errors["out"].bits is not None
    assert other.errors["out"].bits is None
