"""Outputs whose bits are the same in every launch, only in every launch of a process, or not even there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fakes import FakeEnvironment, case_of, doubling, measuring, right, run, wrong_where
from made_up_results import result as made_up_result

from pytest_gpukern import Tolerance
from pytest_gpukern.check import check_variant as check_module
from pytest_gpukern.check import engine
from pytest_gpukern.report.details import checks
from pytest_gpukern.values.result import Correctness, OutputError, of_launches, of_sessions
from pytest_gpukern.values.settings import Settings

A, B = "splitmix64:000000000000000a", "splitmix64:000000000000000b"
LOOSE = {"tolerance": Tolerance(1e-3), "allow_lower_precision": "for other bits"}


# pure decisions


@pytest.mark.parametrize(
    ("bits", "found"),
    [
        ([A, A, A], "bitwise"),
        ([A, B, A], "tolerant"),
        ([A, A, B], "tolerant"),
        ([A], None),
        ([], None),
        ([A, None], None),
    ],
)
def test_launches_that_agree_are_bitwise_and_one_alone_shows_nothing(bits, found):
    assert of_launches(bits) == found


@pytest.mark.parametrize(
    ("sessions", "found"),
    [
        ([("bitwise", A), ("bitwise", A)], "bitwise"),
        ([("bitwise", A), ("bitwise", B)], "run-to-run"),
        ([("bitwise", A), ("tolerant", A)], "tolerant"),
        ([("run-to-run", A), ("bitwise", A)], "run-to-run"),
        ([("bitwise", A), (None, B)], "bitwise"),  # an older release took the hash of another output
        ([("bitwise", A), ("bitwise", "crc32-16mib:0b")], "bitwise"),  # hashes by two methods
        ([("bitwise", None), ("bitwise", A)], "bitwise"),
        ([(None, A), (None, B)], None),
        ([], None),
    ],
)
def test_sessions_show_more_than_one_does(sessions, found):
    assert of_sessions(sessions) == found


# launches of a case


def drifting(a, out):
    """Each launch is off by one step more."""
    launches = itertools.count()
    return lambda: np.multiply(a, np.float32(2 * (1 + next(launches) * 2.0**-22)), out=out)


def determinism_of(prepare, environment, backend="host", **arguments):
    case = case_of(prepare, backend, doubling(**LOOSE), **arguments)
    found = run(case, environment)
    return found, found.errors["out"].determinism


def one_is_wrong(a, out):
    np.multiply(a, 2, out=out)
    out[3] += 1


def other_bits(a, out):
    np.multiply(a, np.float32(2 + 2.0**-22), out=out)


@pytest.fixture
def looks_elsewhere(monkeypatch):
    """What is looked at while it is timed, and once behind it, is right."""
    monkeypatch.setattr("pytest_gpukern.run.case_subject.check_left", lambda launch: None)
    monkeypatch.setattr(engine, "REPEATED_NS", 1e12)  # a loaded machine repeats as often as an idle one


@pytest.mark.parametrize("count", [64, 101])
@pytest.mark.parametrize(
    ("then", "declared", "fault"),
    [
        (one_is_wrong, None, "out: wrong values: 1 of 8 elements"),
        (lambda a, out: None, None, "out: 8 of 8 elements"),
        (other_bits, "bitwise", "out: not deterministic: 2 results from "),
        (other_bits, None, None),
    ],
)
def test_one_launch_in_so_many_is_found_by_its_hash_after_timing(
    gpu, timer, events, looks_elsewhere, count, then, declared, fault
):
    environment = FakeEnvironment(gpu, settings=measuring())
    prepare = wrong_where(lambda *counts: counts[-1] % count == count - 1, then, events)
    found, kind = determinism_of(prepare, environment, "numba", determinism=declared)
    if fault is None:
        assert (found.correctness, kind) == (Correctness.PASSED, "tolerant")
    else:
        assert found.diagnosis.startswith(f"correct before timing, wrong after it\n{fault}")


def test_what_was_tolerant_before_or_is_slow_is_not_launched_for_its_hash(gpu, timer, events, monkeypatch):
    compared = []
    monkeypatch.setattr(check_module, "repeat_while_steady", lambda *_, **__: compared.append(1))
    environment = FakeEnvironment(gpu, settings=measuring())
    assert determinism_of(drifting, environment, "numba")[1] == "tolerant"
    monkeypatch.setattr(engine, "REPEATED_NS", 0)
    assert determinism_of(right, environment, "numba")[1] == "bitwise"
    assert compared == []


@pytest.mark.parametrize("declared", ["bitwise", "run-to-run"])
def test_one_that_declares_otherwise_is_incorrect_also_where_nothing_is_timed(declared):
    environment = FakeEnvironment(settings=Settings(requested=True))
    found, _ = determinism_of(drifting, environment, determinism=declared)
    assert found.correctness is Correctness.INCORRECT
    assert found.diagnosis == (
        "out: not deterministic: 2 results from 2 launches on the same inputs, but "
        f"determinism={declared!r} is declared"
    )


@pytest.mark.parametrize("declared", ["bitwise", "tolerant", None])
def test_one_that_repeats_itself_passes_whatever_it_declares(declared):
    environment = FakeEnvironment(settings=Settings(requested=True))
    found, kind = determinism_of(right, environment, determinism=declared)
    assert found.correctness is Correctness.PASSED
    assert kind == ("bitwise" if declared else None), "what is neither timed nor declared is not looked at"


@pytest.mark.parametrize(
    ("took_ns", "on_gpu", "declared", "launches"),
    [
        (1e6, False, "tolerant", 3),
        (6e7, False, "bitwise", 2),
        (1e7, True, "run-to-run", 3),
        (6e7, True, "bitwise", 2),
        (1e9, True, "bitwise", 2),
        (2e9, True, "bitwise", 1),
        (1e6, True, None, 1),
    ],
)
def test_launches_are_repeated_for_what_is_declared_and_slow_ones_less_or_not_at_all(
    gpu, monkeypatch, took_ns, on_gpu, declared, launches
):
    problem, times = doubling(), itertools.count(0, took_ns)
    case = case_of(right, "numba" if on_gpu else "host", problem, determinism=declared)
    environment = FakeEnvironment(gpu)
    backend = environment.backend(case.variant.backend)
    sets = environment.datasets.for_check(problem, case.point, contents=1, available_bytes=1e9)
    monkeypatch.setattr(engine.time, "perf_counter_ns", lambda: next(times))
    counted = []
    monkeypatch.setattr(
        check_module.Prepared, "compared", lambda prepared: counted.append(prepared.dataset) or ()
    )
    workspace = backend.workspace(sets[0].inputs, sets[0].specs)
    prepared = check_module.Prepared(case, case.point, backend, workspace, sets)
    check_module.check(prepared, checked_again=True)
    assert len(counted) == launches


# what travels and is shown


def error(kind, bits=A):
    return OutputError(1000, 0, 1e-7, 6e-8, 0.5, bits, kind)


def test_what_cases_have_in_common_is_told_once_and_then_what_each_alone_has():
    told = {"corners": ("n=0", "n=257"), "seed": 7}
    several = {"y": error("bitwise"), "z": error("tolerant"), "w": error("bitwise"), "v": error(None)}
    lines = checks(
        [
            made_up_result("cupy.exp", **told),
            made_up_result("numba.exp", **told, errors=several),
            made_up_result("cupy.bad", errors=several, correctness=Correctness.INCORRECT),
        ],
        width=160,
    )
    bits = "y, w: the same bits in every launch; z: bits that differ between launches"
    assert [line.text for line in lines] == [
        "  all 2 cases · checked at n=0, n=257 too; seed 7",
        f"  vector_exp/numba.exp/n=1000 · {bits}",
        "",
    ]
    assert checks([made_up_result(errors={"y": error(None)})], width=80) == []
