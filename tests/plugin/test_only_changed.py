"""Checks `--gpukern-only-changed` in whole runs: what does as its record did is checked, and not timed."""

import json
import re
from pathlib import Path

import pytest
from made_up_runs import whole_run
from msgspec import structs
from repositories import Repository

from pytest_gpukern.values.verdict_table import VerdictKind

from .conftest import FIRST, KERNEL_PROBLEM, SECOND, repeat_sessions, results_in
from .fake_gpu import MODEL_KEY
from .test_against import run as in_a_run

ON_HOST = "doubling/host.third/n=8"
PROBLEM = KERNEL_PROBLEM.replace(
    "@doubling.cases",
    """@doubling.variant("host")
def third(x, y):
    return lambda: np.multiply(x, float(os.environ.get("THIRD_FACTOR", 2)), out=y)

@doubling.cases""",
)
KERNEL = {"registers": 32, "code": "beef", "grid": [4, 1, 1]}
TIMED, NOT_TIMED, CHECKED = ({"SAME"}, 1), ({"SAME CODE"}, 0), (set(), 0)
"""Verdicts of a case, and how many times it was measured."""


@pytest.fixture
def launch(monkeypatch):
    """Says in what the kernel of the first variant differs from that of the second."""

    def say(**changes):
        monkeypatch.setenv("FIRST_KERNEL", json.dumps({**KERNEL, **changes}))

    say()
    monkeypatch.setenv("SECOND_KERNEL", json.dumps(KERNEL))
    return say


def on_the_record(changes):
    """Changes the record: pattern → what is there instead."""
    path = Path("baselines", f"doubling.{MODEL_KEY}.json")
    for now, then in changes.items():
        text, count = re.subn(now, then, path.read_text())
        assert count
        path.write_text(text)


@pytest.fixture
def verdicts(gpu, pytester, record, launch, monkeypatch):
    """Records the suite; runs it with the option; returns verdicts and number of times of each case."""

    def run():
        gpu("--gpukern-only-changed", "--gpukern-report=run.json").assert_outcomes(passed=3)
        return {
            case_id: (
                {verdict["kind"] for verdict in result["verdicts"].values()},
                len(result["measurements"]),
            )
            for case_id, result in results_in(Path("run.json")).items()
        }

    pytester.makepyfile(test_doubling=PROBLEM)
    record("with_kernels", 3)
    return run


def test_what_launches_the_same_code_in_the_same_time_is_checked_and_not_timed(verdicts, gpu, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1009")  # less than half the threshold
    assert verdicts() == {FIRST: NOT_TIMED, SECOND: NOT_TIMED, ON_HOST: CHECKED}
    gpu("--gpukern-only-changed").stdout.fnmatch_lines(["gpukern: 3 passed · of 2 times: 2 same code*"])
    monkeypatch.setenv("THIRD_FACTOR", "3")
    monkeypatch.setenv("SECOND_ESCAPES", "another stream works, too")  # so its launches are not all known
    lines = [f"INCORRECT  {ON_HOST}", f"INVALID  {SECOND}", "*1 same code, 1 invalid"]
    gpu("--gpukern-only-changed").stdout.fnmatch_lines(lines)


@pytest.mark.parametrize("change", [{"code": "cafe"}, {"grid": [8, 1, 1]}, {"order": [0, 0]}, {}], ids=str)
def test_what_launches_something_else_or_takes_another_time_is_timed(verdicts, launch, change, monkeypatch):
    launch(**change)
    monkeypatch.setenv("FIRST_TAKES_NS", "1000" if change else "1012")
    assert verdicts() == {FIRST: TIMED, SECOND: NOT_TIMED, ON_HOST: CHECKED}


@pytest.mark.parametrize("unknown", [{"code": None}, {"order": []}], ids=str)
def test_what_launches_nobody_knows_what_is_timed_also_if_it_was_so_on_record(verdicts, gpu, launch, unknown):
    launch(**unknown)
    gpu("--gpukern-baseline=update", "--gpukern-reason=x").assert_outcomes(passed=3)
    repeat_sessions(Path(), 3)
    assert verdicts() == {FIRST: TIMED, SECOND: NOT_TIMED, ON_HOST: CHECKED}


@pytest.mark.parametrize(
    ("now", "on_record", "expected"),
    [
        ('"GPU-fa4e"', '"GPU-0ddd"', NOT_TIMED),
        ('"numpy":', '"cupy": "0.1", "numpy":', NOT_TIMED),  # which the variants do not use
        ('"numpy": "[^"]*"', '"numpy": "0.1"', TIMED),
        ('"problem_version": 1', '"problem_version": 7', ({"UNCOMPARABLE"}, 1)),
    ],
)
def test_the_same_code_is_timed_if_more_than_the_card_is_another(verdicts, now, on_record, expected):
    on_the_record({now: on_record})
    assert verdicts() == {FIRST: expected, SECOND: expected, ON_HOST: CHECKED}


# without the option: where the time alone cannot decide


ANOTHER_CARD = {'"GPU-fa4e"': '"GPU-0ddd"'}


@pytest.fixture
def judged(gpu, pytester, record, launch, monkeypatch):
    """Records the suite with known scalar arguments; runs it; returns the verdict of the first variant."""

    def run(*options, on_record=ANOTHER_CARD):
        on_the_record(on_record)
        run.output = gpu("--gpukern-report=run.json", *options).stdout
        run.sessions = whole_run(Path("run.json"))["sessions"]
        return results_in(Path("run.json"))[FIRST]["verdicts"]["kernel/event/cold"]

    launch(scalars="5c")
    pytester.makepyfile(test_doubling=PROBLEM)
    record("with_scalars", 3)
    return run


@pytest.mark.parametrize("takes_ns", [970, 1060, 3000])
def test_on_another_card_a_kernel_that_does_the_same_needs_no_time(judged, monkeypatch, takes_ns):
    monkeypatch.setenv("FIRST_TAKES_NS", str(takes_ns))
    verdict = judged("-k", "numba")
    assert (verdict["kind"], verdict["suspected"], verdict["false_alarm"]) == ("SAME CODE", False, 0)
    assert verdict["ratio"] == pytest.approx(takes_ns / 1000), "a common shift still counts it"
    assert judged.sessions == [], "which would confirm"
    of_the_other = "another card than recorded: nothing below * % is caught; *"  # of one time
    judged.output.fnmatch_lines([of_the_other, "*of 2 times: 1 undecided, 1 same code"])


@pytest.mark.parametrize(
    ("launched", "on_record"),
    [
        *(({"order": []}, {}), ({"code": None}, {}), ({"scalars": None}, {})),
        *(({}, {r',\s*"scalars": "5c"': ""}), ({}, {'"inputs": "[^"]*",': ""})),
        ({}, {'"inputs": "[^"]*"': '"inputs": "1b"'}),
    ],
    ids=str,
)
def test_on_another_card_what_is_not_known_to_do_the_same_is_judged_by_its_time(
    judged, launch, launched, on_record
):
    launch(**{"scalars": "5c", **launched})
    assert judged(on_record={**ANOTHER_CARD, **on_record})["kind"] == "UNDECIDED"


def test_on_the_card_of_the_record_fresh_sessions_decide_and_say_that_it_is_the_machine(judged, monkeypatch):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    verdict = judged(on_record={})
    assert (verdict["kind"], len(judged.sessions)) == ("SLOWER", 3)
    line = "SLOWER (kernel/event/cold): +10.0 %*; the same code, launches, arguments and inputs: the machine*"
    judged.output.fnmatch_lines([line])


def test_a_suspicion_that_fresh_sessions_leave_open_is_decided_by_the_code(judged, launch, monkeypatch):
    def refuted(suspicion, fresh, basis):
        return structs.replace(suspicion, kind=VerdictKind.UNDECIDED, suspected=False, unconfirmed=True)

    monkeypatch.setattr("pytest_gpukern.run.spine.confirm", refuted)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    assert judged(on_record={})["kind"] == "SAME CODE"
    launch()
    assert judged(on_record={})["kind"] == "UNDECIDED"


PLAIN = """
import json, os
from rounds import ROUNDS

def call():
    pass

call.takes_ns = ROUNDS * float(os.environ.get("CARD", 1))
call.kernel = json.dumps({"registers": 32, "code": "beef"})

def test_rounds(gpu_benchmark):
    gpu_benchmark(call)
"""


def test_a_plain_test_does_the_same_if_no_file_that_it_loads_has_changed(tmp_path):
    """Its inputs and arguments are not known. By one recorded session nothing is suspected."""
    repository = Repository(tmp_path / "project")
    repository.commit(rounds="ROUNDS = 1000", other="ROUNDS = 7", test_plain=PLAIN)
    in_a_run(repository, "--gpukern-baseline=create", "--gpukern-sessions=1")
    repository.commit()
    report = ("--gpukern-baseline=compare", "--gpukern-report=run.json")
    for changed, expected in (("other", "SAME CODE"), ("rounds", "SLOWER")):
        repository.write(**{changed: "ROUNDS = 1100"})
        in_a_run(repository, *report, FAKE_GPUS="GPU-0ddd", CARD="1.05")
        (found,) = results_in(repository.top / "run.json").values()
        assert [of["kind"] for of in found["verdicts"].values()] == [expected]


@pytest.mark.parametrize("on_record", [{}, ANOTHER_CARD], ids=["card", "another"])
def test_with_the_option_a_kernel_that_does_the_same_needs_no_time(judged, monkeypatch, on_record):
    monkeypatch.setenv("FIRST_TAKES_NS", "1500")
    assert judged("--gpukern-only-changed", on_record=on_record)["kind"] == "SAME CODE"
    assert results_in(Path("run.json"))[FIRST].get("measurements", []) == []


def test_fresh_sessions_confirm_what_became_slower(on_fake_gpu, pytester, launch, monkeypatch):
    pytester.makepyfile(test_doubling=PROBLEM)
    create = ("--gpukern-baseline=create", "--gpukern-sessions=1", "--gpukern-isolate=off")
    on_fake_gpu("--gpu-benchmark", *create).assert_outcomes(passed=3)
    repeat_sessions(pytester.path, 3)
    launch(code="cafe")
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    monkeypatch.setenv("SECOND_TAKES_NS", "1200")
    result = on_fake_gpu("--gpu-benchmark", "--gpukern-only-changed")
    became = ["+10.0 % *; because: new machine code", "+20.0 % *; same machine code*"]
    result.stdout.fnmatch_lines([f"SLOWER (kernel/event/cold): {change}" for change in became])
    result.stdout.fnmatch_lines(["gpukern: 1 passed, 2 failed by * · of 2 times: 2 slower"])
