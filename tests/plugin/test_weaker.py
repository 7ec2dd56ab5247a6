"""Checks that no check is weakened unseen, by the record and against a base. The GPU is fake."""

from __future__ import annotations

import re

import pytest
from made_up_records import case_of, path_in, record, result_of
from made_up_runs import whole_run
from repositories import Repository

from . import fake_gpu
from .test_against import run as run_against

SUITE = """
import numpy as np
from pytest_gpukern import Axis, Output, Problem, Tolerance
from strictness import WEAK

def either(strict, weak):
    return weak if WEAK else strict

def declare(name, *, variant={}, part=..., **changes):
    given = dict(
        version=1, axes={"n": Axis(smoke=(64,), full=(64,))}, make_inputs=lambda rng, n: {"x": rng.random(n)},
        outputs=lambda n: {"y": ((n,), "float64")}, reference=lambda x: 2 * x,
    )
    problem = Problem(name, **given | changes)

    @problem.variant("numba", **variant)
    def first(x, y):
        def launch():
            np.multiply(x[part], 2, out=y[part], casting="unsafe")
        launch.takes_ns = 1000
        return launch

    @problem.cases
    def test(gpu_benchmark, case):
        gpu_benchmark.run(case)
    globals()[f"test_{name}"] = test

declare("rtol", version=either(1, 2), tolerance=Tolerance(rtol=either(1e-12, 1e-9)))
declare("atol", tolerance=lambda n: {"y": Tolerance(rtol=1e-12, atol=either(1e-15, 1e-12))})
declare("tighter", tolerance=Tolerance(rtol=either(1e-9, 1e-12)))
declare("points", check_points=[{"n": n} for n in either((1, 63, 65), (1, 63))])
declare("at_a_point", check_points=[{"n": n} for n in (1, 63)],
        tolerance=lambda n: Tolerance(rtol=1e-12 if n == 64 else either(1e-12, 0.9)))
declare("zeros_at_points", check_points=[{"n": n} for n in (1, 63)],
        make_inputs=lambda rng, n: {"x": rng.random(n) * either(1, n == 64)})
declare("more_points", check_points=[{"n": n} for n in either((1, 63), (1, 63, 65))])
declare("special", special_values={"x": either((np.nan, 0.0, 1.0), (1.0,))})
declare("layout", layouts={"misaligned": either(("x", "y"), ("x",))}, variant={"layouts": ["misaligned"]})
declare("work", traffic_bytes=lambda n: either(16, 8) * n, flops=either(lambda n: n, None))
declare("smaller", make_inputs=lambda rng, n: {"x": rng.random(either(64, 32))},
        outputs=lambda n: {"y": ((either(64, 32),), "float64")})
declare("dtype", outputs=lambda n: {"y": ((n,), either("float64", "float32"))})
declare("reference", reference=lambda x: 2 * x if not WEAK else 2 * x + 1e-5 * x.mean(),
        tolerance=Tolerance(rtol=1e-9, atol=1e-4), allow_lower_precision="to try it")
declare("reference_dtype", reference=lambda x: (2 * x).astype(either("float64", "float32")),
        tolerance=Tolerance(rtol=1e-6), allow_lower_precision="to try it")
declare("inputs", make_inputs=lambda rng, n: {"x": rng.random(n) + either(0, 1)})
part = np.s_[:either(64, 32)]
declare("written", part=part, outputs=lambda n: {"y": Output((n,), "float64", written=part)})
declare("check", check=either(lambda runs: None, None))
declare("sound", allow_lower_precision=either(None, "why not"))
declare("determinism", variant={"determinism": either("bitwise", None)})
declare("scopes", scopes=either(("kernel", "end_to_end"), ("end_to_end",)))
"""
CALLS = """
import numpy as np, pytest
from strictness import WEAK

def either(strict, weak):
    return weak if WEAK else strict

def kernel(x, y, z):
    np.multiply(x, 2, out=y)
    np.multiply(x, 3, out=z)

def declare(name, times=3, size=64, seed=1, outputs=("y", "z"), **marker):
    @pytest.mark.gpu_benchmark(outputs=outputs, **marker)
    def test(gpu_benchmark):
        x = np.random.default_rng(seed).random(64)
        y, z = np.zeros(64), np.zeros(64)
        gpu_benchmark(kernel, x, y, z)
        gpu_benchmark.verify(y, 2 * x)
        if times == 3:
            gpu_benchmark.verify(z[:size], 3 * x[:size])
    globals()[f"test_{name}"] = test

declare("compares_fewer", either(3, 2))
declare("updates", outputs=either(("y", "z"), "y"), inout=either(None, "z"))
declare("names_more", outputs=either(None, ("y", "z")))
declare("compares_a_part", size=either(64, 32))
declare("another_seed", seed=None)
declare("hot", cache=either(None, "hot"))
declare("threshold", threshold=either("2%", "50%"))
declare("nearer", threshold=either(None, "1%"))

def test_verified(gpu_benchmark):
    x = np.arange(64.0)
    gpu_benchmark(np.multiply, x, 2)
    gpu_benchmark.verify(2 * x, 2 * x + either(0, 1e-3), rtol=1e-5, atol=1e-2)

def test_may_be_right(gpu_benchmark):
    x = np.arange(64.0)
    y = gpu_benchmark(np.multiply, x, 2)
    gpu_benchmark.verify(y, 2 * x)
    if not WEAK:
        gpu_benchmark.verify(y, 3 * x, expect_failure=True)

def test_fewer(gpu_benchmark):
    x = np.ones(either(64, 4), either("int64", "int8"))
    gpu_benchmark.verify(gpu_benchmark(np.mean, x), 1.0)

def test_never_verified(gpu_benchmark):
    x = np.arange(64.0)
    y = gpu_benchmark(np.multiply, x, 2)
    if not WEAK:
        gpu_benchmark.verify(y, 2 * x)
"""
WEAKER = {
    "rtol": ["y: rtol 1e-12 → 1e-09"],
    "atol": ["y: atol 1e-15 → 1e-12"],
    "points": ["no longer checked at n=65"],
    "at_a_point": ["y at n=1: rtol 1e-12 → 0.9"],
    "zeros_at_points": ["input x at n=1: other values", "y at n=1: other values"],
    "special": ["no longer checked at x=0, x=nan"],
    "layout": ["no longer checked at misaligned y"],
    "work": ["bytes 1024 → 512", "flops 64 → 0"],
    "smaller": [
        "y: elements compared with a reference 64 → 32",
        "y: elements that a launch must write 64 → 32",
        "input x: elements 64 → 32",
    ],
    "dtype": ["y: rtol 1e-09 → 1.3e-06", "y: atol 1e-09 → 1e-05", "y: dtype float64 → float32"],
    "reference": ["y: other values of the reference"],
    "reference_dtype": ["y: dtype of the reference float64 → float32"],
    "inputs": ["input x: other values"],
    "written": ["y: elements that a launch must write 64 → 32", "y: other values of the reference"],
    "check": ["check= judged → none"],
    "sound": ["allow_lower_precision False → True"],
    "determinism": ["determinism bitwise → not declared"],
    "scopes": ["no longer timed as kernel"],
    "compares_fewer": ["z: elements compared with a reference 64 → 0"],
    "compares_a_part": ["z: elements compared with a reference 64 → 0"],
    "updates": ["z: elements that a launch must write 64 → 0"],
    "hot": ["no longer timed as kernel"],
    "threshold": ["threshold 2 % → 50 %"],
    "verified": ["output: other values of the reference"],
    "may_be_right": ["comparisons that have to fail 1 → 0"],
    "fewer": ["input a: elements 64 → 4", "input a: dtype int64 → int8"],
    "never_verified": ["output: elements compared with a reference 64 → 0"],
}
NOT_WEAKER = {"tighter", "more_points", "names_more", "another_seed", "nearer"}
FAIL = "--gpukern-fail-on=weaker,none"
"""As somebody may ask for who accepts what is slower."""


def found_in(path):
    """Problem or plain test → what its checks lost."""
    found = {}
    for result in whole_run(path)["results"]:
        texts = [of["text"] for of in result.get("findings", ()) if of["kind"] == "weaker"]
        found[result["case"]["id"].removeprefix("test_calls/test_").partition("/")[0]] = texts
    return found


def fails_by_name(folder, out):
    """Asserts that what is weaker, and no more, failed its test by name."""
    assert found_in(folder / "run.json") == WEAKER | {name: [] for name in NOT_WEAKER}
    for name, texts in WEAKER.items():
        named = rf"^FAILED \S+::test_{name}(\[\S+)? - Failed: WEAKER: {re.escape(texts[0])}"
        assert re.search(named, out, re.MULTILINE)
    assert f"= {len(WEAKER)} failed, {len(NOT_WEAKER)} passed" in out


def test_each_check_that_is_weaker_than_at_the_base_fails_its_test_by_name(tmp_path):
    repository = Repository(tmp_path / "project")
    repository.commit(strictness="WEAK = False", test_problems=SUITE, test_calls=CALLS)
    repository.write(strictness="WEAK = True")
    found = run_against(repository, "--gpukern-report=run.json", FAIL)
    fails_by_name(repository.top, found.out)


def test_each_check_that_is_weaker_than_on_record_fails_its_test_until_that_is_accepted(
    pytester, monkeypatch
):
    fake_gpu.install(monkeypatch)
    pytester.makepyfile(strictness="WEAK = False", test_problems=SUITE, test_calls=CALLS)

    def run(*options):  # of a busy host: its times are real, and not what this is about
        always = ("--gpu-benchmark", "--gpukern-report=run.json", "--gpukern-threshold=90%")
        return pytester.runpytest_inprocess(*always, *options)

    everything = len(WEAKER) + len(NOT_WEAKER)
    for mode in ("create", "append", "append"):
        run(f"--gpukern-baseline={mode}").assert_outcomes(passed=everything)
    run(FAIL).assert_outcomes(passed=everything)
    pytester.makepyfile(strictness="WEAK = True")
    fails_by_name(pytester.path, run(FAIL).stdout.str())
    run(FAIL, "--gpukern-seed=7", "-k", "rtol or inputs").assert_outcomes(passed=1, failed=1)
    run(FAIL, "--gpukern-axis=n=64", "-k", "more_points or scopes").assert_outcomes(passed=1, failed=1)
    run().assert_outcomes(passed=everything)
    update = ("--gpukern-baseline=update", "--gpukern-reason=checks less on purpose")
    run(FAIL, *update).assert_outcomes(passed=everything)
    run(FAIL).assert_outcomes(passed=everything)


LEFT_OUT = """
import pytest
from pytest_gpukern import Axis, Problem
from strictness import WEAK

@pytest.mark.skipif(WEAK, reason="too slow")
def test_skipped(gpu_benchmark):
    gpu_benchmark(list)

@pytest.mark.xfail(WEAK, reason="noisy")
def test_xpassed(gpu_benchmark):
    gpu_benchmark(list)

@pytest.mark.xfail(reason="noisy")
def test_always_xpassed(gpu_benchmark):
    gpu_benchmark(list)

@pytest.mark.xfail(WEAK, reason="flaky")
def test_xfailed(gpu_benchmark):
    gpu_benchmark(list)
    assert not WEAK

problem = Problem("p", version=1, axes={"n": Axis(smoke=(8,), full=(8,))}, reference=lambda x: 2 * x,
    make_inputs=lambda rng, n: {"x": rng.random(n)}, outputs=lambda n: {"y": ((n,), "float64")})

@problem.wrong("numba", expected_fault="not written")
def lazy(x, y):
    return lambda: None

@pytest.mark.skipif(WEAK, reason="too slow, too")
@problem.wrong_cases
def test_wrong(gpu_benchmark, case):
    gpu_benchmark.reject(case)

def test_unmeasured(gpu_benchmark):
    if not WEAK:
        gpu_benchmark(list)

def test_kept(gpu_benchmark):
    gpu_benchmark(list)

def test_deselected(gpu_benchmark):
    gpu_benchmark(list)

if not WEAK:
    def test_removed(gpu_benchmark):
        gpu_benchmark(list)

    def test_rejects(gpu_benchmark):
        pass

    @pytest.mark.parametrize("n", [10])
    def test_large(gpu_benchmark, n):
        gpu_benchmark(list)
"""
DESELECTS = """
import os
os.environ["PYTEST_ADDOPTS"] = "-k kept"

def pytest_configure(config):
    config.option.lf = True

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name != "test_deselected"]
"""
LOST = [
    "4 removed since the base: test_left_out.py::test_deselected, test_left_out.py::test_removed, ",
    "addopts = -q → -q -x",
    "baselines/vector_exp.nvidia-h200.json: sessions on record were changed or taken out: vector_exp-numba",
    "1 cannot fail any more: expected to fail: flaky (test_left_out.py::test_xfailed)",
    "1 cannot fail any more: expected to fail: noisy (test_left_out.py::test_xpassed)",
    "1 cannot fail any more: its test measured nothing (test_left_out.py::test_unmeasured)",
    "1 cannot fail any more: too slow (test_left_out.py::test_skipped)",
    "1 cannot fail any more: too slow, too (test_left_out.py::test_wrong[p/numba.lazy/n=8])",
]


@pytest.mark.parametrize(("fails", "chosen"), [(True, ()), (False, ("-m", "not nightly"))])
def test_tests_options_and_records_that_let_more_pass_than_the_base_are_told(tmp_path, fails, chosen):
    repository = Repository(tmp_path / "project")
    ini, baselines = repository.top / "pytest.ini", repository.top / "baselines"
    ini.write_text("[pytest]\naddopts = -q\n")
    record("create", result_of(case_of(baselines)))
    repository.commit(strictness="WEAK = False", test_left_out=LEFT_OUT)
    repository.write(strictness="WEAK = True", conftest=DESELECTS)
    ini.write_text("[pytest]\naddopts = -q -x\n")
    path_in(baselines).unlink()
    forms = ("--gpukern-report=run.json", "--gpukern-report=page.html", "--gpukern-report=c.md")
    found = run_against(repository, *forms, *chosen, *[FAIL] * fails)
    assert found.status == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)
    told = whole_run(repository.top / "run.json")["problems" if fails else "since_record"]
    begin = "--gpukern-fail-on=weaker: " if fails else "weaker: "
    lengths = [len(begin + lost) for lost in LOST]
    assert [text[:length] for text, length in zip(told, lengths, strict=True)] == [begin + of for of in LOST]
    for text in (found.out, *((repository.top / name).read_text() for name in ("page.html", "c.md"))):
        assert all(words in text for words in ("removed since the base", "sessions on record", "too slow"))


def test_recorded_tests_that_are_gone_skipped_or_expected_to_fail_are_told(pytester, monkeypatch):
    fake_gpu.install(monkeypatch)
    pytester.makepyfile(strictness="WEAK = False", test_left_out=LEFT_OUT)

    def run(*options):
        return pytester.runpytest_inprocess("--gpu-benchmark", *options)

    run("--gpukern-baseline=create", "-k", "not unmeasured")
    pytester.makepyfile(strictness="WEAK = True")
    gone = "2 cannot fail any more: no test measures it any more "
    gone += "(test_left_out/test_large[10], test_left_out/test_removed)"
    lost = "1 cannot fail any more: expected to fail: flaky (test_left_out/test_xfailed)"
    skipped = "1 cannot fail any more: too slow (test_left_out/test_skipped)"

    def told(*options):
        result = run(*options)
        return result.ret, [line.partition("weaker: ")[2] for line in result.outlines if "weaker: " in line]

    assert told(FAIL) == (pytest.ExitCode.TESTS_FAILED, [lost, gone, skipped])
    assert told(f"{FAIL},missing") == (pytest.ExitCode.TESTS_FAILED, [lost])
    assert told() == (pytest.ExitCode.OK, [lost])
    assert told(FAIL, "-k", "kept or skipped") == (pytest.ExitCode.TESTS_FAILED, [skipped])
    assert told(FAIL, "-k", "kept") == (pytest.ExitCode.OK, [])
