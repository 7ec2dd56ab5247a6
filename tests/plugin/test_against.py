"""Checks comparisons of two revisions in whole runs: real repositories and processes, a fake GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from doubling import CASES, of_size
from made_up_runs import whole_run
from repositories import Repository

from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.forms import file_content
from pytest_gpukern.report.run_file import read_run

from .conftest import properties_in

HERE = Path(__file__).parent

KERNELS = """
TAKES_NS = {"first": 1000, "second": 1000, "mended": 1000}
FACTOR = {"mended": 3}
"""

SUITE = (
    of_size(8).replace("2 * x", "noted(2 * x)")
    + """
from kernels import FACTOR, TAKES_NS

def noted(expected):
    with open("references", "a") as file:
        print(os.getpid(), file=file)
    return expected

def launch_of(name, x, y):
    def launch():
        np.multiply(x, FACTOR.get(name, 2), out=y)
    launch.takes_ns = TAKES_NS[name]
    launch.kernel = globals().get("KERNEL", {}).get(name, "null")
    return launch

@doubling.variant("numba")
def first(x, y):
    return launch_of("first", x, y)

@doubling.variant("numba")
def second(x, y):
    return launch_of("second", x, y)

@doubling.variant("numba")
def mended(x, y):
    return launch_of("mended", x, y)

def test_without_a_gpu():
    with open("ran.txt", "a") as file:
        file.write("once ")
"""
    + CASES
)

OTHER = """
@doubling.variant("numba")
def {name}(x, y):
    return launch_of("first", x, y)
"""


def environment(**more):
    left_out = ("GIT_", "PYTEST_", "CI", "NUMBA_ENABLE_CUDASIM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    paths = [str(HERE), *kept.get("PYTHONPATH", "").split(os.pathsep), str(HERE.parents[1])]
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "160",
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
    }


def run(repository, *options, gpu=True, **variables):
    """Runs pytest against `main` or by the record, with two sessions of each side."""
    temporary = repository.top.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    fake = ["-p", "fake_gpu"] if gpu else ["--gpukern-simulator=never"]
    given = [*fake, "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--gpu-benchmark"]
    compared = re.search("--gpukern-(against|baseline)=", " ".join(options))
    given += ["--gpukern-against=main"] if compared is None else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *given, "--gpukern-sessions=2", *options],
        cwd=repository.top,
        env=environment(TMPDIR=str(temporary), **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert repository.worktrees == [], "every run removes its worktree"
    left = [path.name for path in temporary.iterdir() if path.name.startswith("gpukern")]
    assert left == [], "and its folders"
    assert processes_with(str(temporary)) == [], "and ends the sessions that waited for their turn"
    return SimpleNamespace(status=done.returncode, out=done.stdout, err=done.stderr)


def processes_with(text):
    """Returns the command lines with this text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [line for line in [file.read_text()] if text in line]
    return found


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "project")
    made.commit(kernels=KERNELS, test_doubling=SUITE)
    return made


NOTES = """
import os
with open(os.environ["NOTED"], "a") as file:
    print(*{"EARLY", "LATE"} & {*os.environ}, file=file)
"""
SETS = "import os; os.environ['{}'] = '1'\n"


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Runs a working tree with uncommitted changes: a kernel slower, mended, new, removed, wrong."""
    repository = Repository(tmp_path_factory.mktemp("changed") / "project")
    repository.commit(kernels=KERNELS + NOTES, test_doubling=SUITE + OTHER.format(name="gone"))
    kernels = KERNELS.replace('"first": 1000', '"first": 1100').replace('"mended": 3', '"broken": 3')
    broken = OTHER.format(name="broken").replace('"first"', '"broken"')
    kernels = f"{SETS.format('LATE')}{kernels}TAKES_NS['broken'] = 1000"
    test = SUITE + OTHER.format(name="fresh") + broken
    repository.write(conftest=SETS.format("EARLY"), kernels=kernels, test_doubling=test)
    options = ("-rA", "--gpukern-report=run.json", "--junitxml=junit.xml", "--benchmark-sort=name")
    noted = repository.top.parent / "noted"
    found = run(repository, *options, NOTED=str(noted))
    found.top, found.noted_by_base = repository.top, noted.read_text()
    found.base = repository.git("rev-parse", "HEAD")[:7]
    return read(found, repository)


def read(found, repository):
    """Adds what the file of the run holds."""
    content = whole_run(repository.top / "run.json")
    found.results = {result["case"]["variant"]: result for result in content["results"]}
    found.sessions = content["sessions"]
    return found


def outcome(found, variant):
    (word,) = re.findall(rf"^(PASSED|FAILED) \S+\[doubling/numba\.{variant}/n=8\]", found.out, re.MULTILINE)
    return word


def verdict(found, variant):
    (only,) = found.results[variant]["verdicts"].values()
    return only


@pytest.mark.parametrize(
    ("variant", "ended", "kind", "reason"),
    [
        ("first", "FAILED", "SLOWER", "+10.0 %"),
        ("second", "PASSED", "SAME", ""),
        ("mended", "PASSED", "UNCOMPARABLE", "failed on the base: INCORRECT"),
        ("fresh", "PASSED", "NEW", "not in the base"),
    ],
)
def test_a_test_fails_only_if_it_became_slower(changed, variant, ended, kind, reason):
    assert outcome(changed, variant) == ended
    assert verdict(changed, variant)["kind"] == kind
    assert verdict(changed, variant)["reason"].startswith(reason)


def test_a_case_that_is_wrong_in_the_working_tree_fails_with_its_diagnosis(changed):
    assert outcome(changed, "broken") == "FAILED"
    assert changed.results["broken"]["correctness"] == "INCORRECT"
    assert re.search(r"INCORRECT: .* wrong", changed.out)


def test_all_forms_of_the_report_have_what_both_sides_came_to(changed):
    assert changed.status == pytest.ExitCode.TESTS_FAILED
    assert verdict(changed, "first")["ratio"] == pytest.approx(1.1)
    assert "SLOWER (kernel/event/cold): +10.0 %" in changed.out
    found = properties_in(changed.top / "junit.xml")
    first = found["test_doubling[doubling/numba.first/n=8]"]
    assert (first["verdict"], first["change"]) == ("SLOWER", "0.1")
    assert found["test_doubling[doubling/numba.second/n=8]"]["verdict"] == "SAME"
    base = changed.base
    comment = file_content(Path("c.md"), [read_run(changed.top / "run.json")])
    repeat = "pytest 'test_doubling.py::test_doubling[doubling/numba.first/n=8]' --gpu-benchmark"
    assert f"{repeat} --gpukern-against={base}" in first["repeat"]
    assert f"{repeat} --gpukern-against={base}" in comment
    assert f"run on {base} with uncommitted changes · compared with {base}" in comment
    assert "| base → now |" in comment
    assert "the label `slower on purpose`" in comment
    in_benchmarks_table = r"^test_doubling\[doubling/numba\.first/n=8\] +1\.099\d+ "
    assert re.search(in_benchmarks_table, changed.out, re.MULTILINE), "the working tree's numbers"


def test_only_the_suspect_is_measured_again_before_it_fails(changed):
    told = re.findall(
        r"gpukern: session (\d) of 4( for 1 that may be slower)?: the (\w+)", changed.out + changed.err
    )
    order = [side for _, _, side in told]
    assert order == ["base", "working", "working", "base"] * 2
    assert [bool(again) for _, again, _ in told] == [False] * 4 + [True] * 4


def test_the_working_trees_sessions_are_in_the_file_with_one_more_of_what_is_slower(changed):
    roles = {variant: [] for variant in changed.results}
    for session in changed.sessions:
        roles[session["case"]["variant"]].append(session["role"])
        assert session["session"] != changed.results[session["case"]["variant"]]["session"]
    assert roles["first"] == ["further", "confirming", "confirming", "further"]
    assert roles["second"] == roles["fresh"] == ["further"]
    assert roles["broken"] == []
    slower = [each for each in changed.sessions if each["case"]["variant"] == "first"]
    medians = [each["measurements"][0]["summary"]["median_ns"] for each in slower]
    assert medians == pytest.approx([1100] * 4), "all are of the working tree"
    assert (
        "gpukern: one more session for 1 confirmed to be slower: the working tree"
        in changed.out + changed.err
    )


def test_the_report_names_both_sides_first_and_counts_verdicts_against_the_base(changed):
    head = re.search(
        r"^gpukern: working tree against merge-base (\w{7}) of main, a short pair of sessions that asks what "
        r"both do, then 4 sessions A-B-B-A$",
        changed.out,
        re.MULTILINE,
    )
    assert head
    assert "of 4 times: 1 same, 1 slower, 1 uncomparable, 1 new" in changed.out
    assert "stored baselines are not used" in changed.out
    assert verdict(changed, "first")["reason"].endswith(f"; against merge-base {head[1]} of main")
    assert "because: against" not in changed.out


def test_gpukern_report_prints_the_lines_above_and_below_the_tables_as_the_run_did(changed, capsys):
    assert cli.main(["report", str(changed.top / "run.json")]) == 0
    shown = capsys.readouterr().out.splitlines()
    told = [line for line in changed.out.splitlines() if not line.startswith("gpukern: wrote ")]
    below = next(i for i, line in enumerate(shown) if " passed, " in line)
    for part in (shown[: shown.index("")], shown[below:]):
        begin = told.index(part[0])
        assert len(part) > 1
        assert told[begin : begin + len(part)] == part


def test_new_and_removed_cases_are_listed_and_other_tests_ran_once_as_always(changed):
    assert "gpukern: 2 new, not in the base: " in changed.out
    assert re.search(r"^weaker: 1 removed since the base: \S+numba\.gone/n=8", changed.out, re.MULTILINE)
    assert re.search(r"^PASSED \S+::test_without_a_gpu$", changed.out, re.MULTILINE)
    assert (changed.top / "ran.txt").read_text() == "once "


def test_variables_that_the_working_tree_sets_do_not_reach_the_base(changed):
    assert set(changed.noted_by_base) == {"\n"}


WAVERING = """
import os
with open(os.environ["SESSIONS"], "a") as file:
    file.write("x")
    session = file.tell() - 1
# this process, one session that asks, two of a suspicion, and those that decide about it
TAKES_NS = {"first": [1000, 1000, *map(int, os.environ["THEN"].split())][session], "second": 1000}
FACTOR = {}
"""


@pytest.mark.parametrize(
    ("then", "fresh"),
    [
        ("1100 1100  1030 1120  1070 1080  1070 1080", 6),
        # the first pairs leave it open, so two more are added to them
        ("1030 1300  1150 1160  1150 1160", 2),
    ],
)
def test_a_suspect_is_measured_until_its_fresh_pairs_decide_and_no_longer(tmp_path, then, fresh):
    repository = Repository(tmp_path / "project")
    repository.commit(kernels=KERNELS, test_doubling=SUITE)
    repository.write(kernels=WAVERING)
    found = run(repository, "-k", "first or second", SESSIONS=str(tmp_path / "sessions"), THEN=then)
    told = re.findall(r"session \d of 4 for 1 that (still )?may be slower: the", found.out + found.err)
    assert told == [""] * 4 + ["still "] * (2 * len(then.split()) - 8)
    assert found.status == pytest.ExitCode.TESTS_FAILED
    assert re.search(rf"; {fresh} fresh pairs\s+confirmed at least \+", found.out)


KNOWN = f"""{KERNELS}
FACTOR = {{}}
ONE = '{{"code": "c0de", "registers": 32}}'
KERNEL = dict.fromkeys(TAKES_NS, ONE)
"""
KNOWN_SUITE = SUITE.replace("import FACTOR", "import KERNEL, FACTOR")


def test_what_does_the_same_is_measured_once_and_a_slowdown_by_arguments_is_found(tmp_path):
    """The machine code is the same everywhere: `first` is given more to do, `mended` has another grid.

    Of a host variant nobody knows what it does.
    """
    repository = Repository(tmp_path / "project")
    on_host = OTHER.format(name="on_host").replace('"numba"', '"host"')
    repository.commit(kernels=KNOWN, test_doubling=KNOWN_SUITE + on_host)
    wider = """KERNEL["mended"] = ONE.replace("}", ', "grid": [2, 1, 1]}')"""
    repository.write(kernels=KNOWN.replace('"first": 1000', '"first": 1022') + wider)
    found = read(run(repository, "--gpukern-report=run.json"), repository)
    assert verdict(found, "first")["kind"] == "SLOWER"
    assert verdict(found, "first")["reason"].startswith("+2.2 %")
    measured = [len(verdict(found, each)["pairs"]) for each in ("second", "mended", "on_host")]
    assert measured == [1, 2, 2]
    assert [verdict(found, each)["kind"] for each in ("second", "mended")] == ["SAME CODE", "SAME"]
    reason = verdict(found, "second")["reason"]
    assert "within half the threshold: not measured again; against merge-base" in reason
    assert "gpukern: 1 measured in the short pair of sessions alone: the same machine code," in found.out
    assert re.search("of 4 times: .*1 slower, .*1 same code", found.out)


PLAIN_CALLS = """
import random
import numpy as np
import pytest
from test_doubling import launch_of
from kernels import STEP

@pytest.mark.parametrize("name", ["fixed", "drawn"])
def test_plain(gpu_benchmark, name):
    x, y = np.arange(8.0), np.empty(8)
    gpu_benchmark(launch_of("second", x, y))
    more = STEP if name == "fixed" else random.SystemRandom().random()
    gpu_benchmark.verify(y, 2 * x + more, atol=8.0)
"""


def test_a_call_of_the_same_code_that_is_compared_with_another_reference_is_told(tmp_path):
    """One more session of the base shows which references are drawn anew each time."""
    repository = Repository(tmp_path / "project")
    repository.commit(kernels=f"{KNOWN}\nSTEP = 0.0", test_doubling=KNOWN_SUITE, test_plain=PLAIN_CALLS)
    repository.write(kernels=f"{KNOWN}\nSTEP = 5.0")
    found = run(repository, "test_plain.py", "--gpukern-report=run.json")
    results = {of["nodeid"]: of for of in whole_run(repository.top / "run.json")["results"]}
    told = {name[-6:-1]: [each["text"] for each in of.get("findings", ())] for name, of in results.items()}
    assert told == {"fixed": ["output: other values of the reference"], "drawn": []}
    kinds = {each["kind"] for of in results.values() for each in of["verdicts"].values()}
    assert kinds == {"SAME CODE"}
    assert "session 1 of" not in found.out + found.err


def test_where_all_do_the_same_one_short_pair_of_sessions_is_the_whole_run(tmp_path):
    repository = Repository(tmp_path / "project")
    repository.commit(kernels=KNOWN, test_doubling=KNOWN_SUITE)
    repository.write(other="")
    found = run(repository, "--gpukern-fail-on=no-gpu")
    assert found.status == pytest.ExitCode.OK, found.out
    assert "session 1 of" not in found.out + found.err
    assert "a short pair of sessions that asks what both do\n" in found.out
    assert re.search(r"3 passed · of 3 times: 3 same code$", found.out, re.MULTILINE)


MARKED = """
import pytest

def kernel(): pass

@pytest.mark.xfail(strict=True)
def test_passes_though_it_must_not(gpu_benchmark):
    gpu_benchmark(kernel)

@pytest.mark.xfail(strict=True)
def test_fails_as_it_must(gpu_benchmark):
    gpu_benchmark(kernel)
    assert False

@pytest.mark.skip
def test_is_skipped(gpu_benchmark):
    gpu_benchmark(kernel)
"""


def test_without_a_change_everything_is_the_same_and_marked_tests_are_what_they_were(repository):
    repository.commit(test_marked=MARKED)
    found = run(repository, "-k", "not mended", "-rA")
    assert found.status == pytest.ExitCode.TESTS_FAILED
    assert "the working tree is that commit, unchanged" in found.out
    assert re.search(r"of 2 times: 2 same$", found.out, re.MULTILINE)
    assert "suspected" not in found.out + found.err
    assert "removed" not in found.out
    made_by = (repository.top / "references").read_text().split()
    assert len(set(made_by)) == 1, "the first session of the working tree makes references for the others"
    assert re.search(r"= 1 failed, 3 passed, 1 skipped, 1 deselected, 1 xfailed", found.out)
    assert re.search(r"FAILED \S+::test_passes_though_it_must_not - \[XPASS\(strict\)\]", found.out)


def test_what_cannot_be_collected_on_the_base_is_not_compared_and_all_else_is(tmp_path):
    """A file, a folder with a conftest, and a file that the working tree no longer has."""
    repository = Repository(tmp_path / "project")
    broken, below, new = (SUITE.replace('"doubling"', f'"{name}"') for name in ("broken", "below", "new"))
    fails = "import not_there_at_all\n"
    base = {
        "kernels": KERNELS,
        "test_doubling": SUITE,
        "test_broken": fails + broken,
        "test_left_behind": fails,
    }
    repository.commit(**base, tests__conftest="import nor_this", tests__test_below=below)
    (repository.top / "test_left_behind.py").unlink()
    repository.write(test_broken=broken, tests__conftest="", test_new=new)
    found = run(repository, "-k", "first")
    assert found.status == pytest.ExitCode.OK
    assert re.search(r"of 4 times: 1 same, 2 uncomparable, 1 new$", found.out, re.MULTILINE)
    told = r"1 failed on the base, so not compared: (\S+)::\S+: (\S+) could not be collected: .*\W(\w+)'"
    assert sorted(re.findall(told, found.out)) == [
        ("test_broken.py", "test_broken.py", "not_there_at_all"),
        ("tests/test_below.py", "tests", "nor_this"),
    ]
    assert "if the base has to be built first, give --gpukern-against-setup=CMD" in found.out


def test_where_all_tests_are_new_they_are_checked_and_the_run_ends_as_they_do(tmp_path):
    repository = Repository(tmp_path / "project")
    repository.commit(kernels=KERNELS)
    repository.write(bench__test_doubling=SUITE)
    (repository.top / "bench/pytest.ini").write_text("[pytest]\npythonpath = ..")
    found = run(repository, "-rA", "bench")
    assert found.status == pytest.ExitCode.TESTS_FAILED
    assert outcome(found, "mended") == "FAILED"
    assert re.search(r"2 passed, 1 incorrect · of 2 times: 2 new$", found.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpukern-against=origin/main"], r"against=origin/main: 'origin/main' names no commit in"),
        (["--gpukern-against-setup=echo in $GPUKERN_WORKTREE; exit 7"], r"status 7.*\n.*in \S+/project"),
        (["-n", "2"], "drop -n, or add -n 0"),
        (["--gpukern-fail-on=no-gpu"], "--gpukern-fail-on=no-gpu cannot be met: no GPU: "),
    ],
    ids=["unknown revision", "failing set-up", "distributed tests", "no GPU"],
)
def test_what_cannot_be_compared_is_refused_before_any_session(repository, options, said):
    found = run(repository, *options, gpu="no-gpu" not in options[0])
    assert found.status == pytest.ExitCode.USAGE_ERROR, found.out
    assert re.search(said, found.err)
    assert "Traceback" not in found.err
    assert "session" not in found.out.partition("collected")[2]


def test_ctrl_c_during_a_session_ends_also_those_that_wait_for_their_turn(repository):
    interrupt = "import os, signal, sys; os.kill(os.getppid(), signal.SIGINT)"
    kernels = f"{KERNELS}\nif sys.argv[0] == 'pytest': {interrupt}; time.sleep(60)"
    repository.write(kernels=f"import sys, time{kernels}")
    found = run(repository)
    assert found.status == pytest.ExitCode.INTERRUPTED
    assert "asking what tests do: the working tree" in found.out + found.err


def test_without_a_gpu_host_variants_are_compared_and_fail_nothing(repository):
    host = SUITE.replace('variant("numba")', 'variant("host")')
    repository.commit(kernels=KERNELS, test_doubling=host)
    found = run(repository, "-k", "first", gpu=False)
    assert found.status == pytest.ExitCode.OK
    assert re.search(r"of 1 time: 1 \w+$", found.out, re.MULTILINE)


ON_CARDS = f"""{KNOWN}
import os
TAKES_NS = {{name: ns * float(os.environ.get("CARD", 1)) for name, ns in TAKES_NS.items()}}
"""
OTHER_CARD = {"FAKE_GPUS": "GPU-0ddd", "CARD": "1.05"}
"""It takes 5 % longer for everything."""
COMPARE = ("--gpukern-baseline=compare", "--gpukern-report=run.json")


@pytest.fixture(scope="module")
def recorded_elsewhere(tmp_path_factory):
    """Has a record of one card committed, and the code of two kernels changed since: one is 6 % slower."""
    repository = Repository(tmp_path_factory.mktemp("elsewhere") / "project")
    (repository.top / ".gitignore").write_text("__pycache__\nran.txt\nreferences\nrun.json\n")
    repository.commit(kernels=ON_CARDS, test_doubling=KNOWN_SUITE)
    run(repository, "--gpukern-baseline=create", "--gpukern-sessions=3")
    repository.commit()
    other_code = 'KERNEL |= dict.fromkeys(["first", "mended"], ONE.replace("c0de", "beef"))'
    repository.write(kernels=ON_CARDS.replace('"first": 1000', '"first": 1060') + other_code)
    return repository


def test_code_that_changed_since_other_cards_recorded_it_is_measured_beside_that_commit(recorded_elsewhere):
    found = read(run(recorded_elsewhere, *COMPARE, **OTHER_CARD), recorded_elsewhere)
    assert found.status == pytest.ExitCode.TESTS_FAILED
    beside = f"measured beside {recorded_elsewhere.git('rev-parse', '--short=7', 'HEAD~')} on this card"
    for variant, kind, change in (("first", "SLOWER", "+6.0 %"), ("mended", "SAME", "+0.0 %")):
        assert verdict(found, variant)["kind"] == kind
        assert verdict(found, variant)["reason"].startswith(change)
        assert beside in verdict(found, variant)["reason"]
        assert len(verdict(found, variant)["pairs"]) == 2
    assert verdict(found, "second")["kind"] == "SAME CODE", "a file that it loads changed, its work did not"
    assert beside in verdict(found, "second")["reason"]
    assert len(verdict(found, "second")["pairs"]) == 1
    assert "  kernel    1.05 → 1.11 µs, +6.0 % [+6.0, +6.0], threshold 2 %" in found.out
    assert re.search("FAILED .*numba.first.* - Failed: SLOWER .kernel/", found.out), (
        "its report waited, with its reason"
    )
    assert found.err.count("session 1 of 4: the base") == 1, "tests share the sessions"
    roles = [each["role"] for each in found.sessions if each["case"]["variant"] == "first"]
    assert roles[roles.index("confirming") :] == ["confirming", "confirming", "further"], "enough to accept"


ALLOWS_MORE = """
@pytest.fixture(autouse=True)
def allows_more(request):
    request.node.add_marker(pytest.mark.gpu_benchmark(threshold=0.2))
"""


@pytest.mark.parametrize(
    ("edit", "options", "counts"),
    [
        ("def test_exits():\n    pytest.exit('enough')", [], "4 passed"),
        ("", ["-n", "1", "-k", "first"], "1 failed"),
        (ALLOWS_MORE, [], "4 passed"),
    ],
)
def test_a_test_that_waits_ends_as_one_that_does_not(recorded_elsewhere, tmp_path, edit, options, counts):
    repository = Repository(shutil.copytree(recorded_elsewhere.top, tmp_path / "project"))
    repository.write(test_doubling=f"import pytest\n{KNOWN_SUITE}\n{edit}")
    found = read(run(repository, *COMPARE, *options, **OTHER_CARD), repository)
    assert re.search(rf"^(=+ )?{counts} in ", found.out, re.MULTILINE), found.out
    assert ("session 1 of 4" in found.err) == (edit == ALLOWS_MORE), "told where tests share sessions"
    if "exit" in edit:
        assert verdict(found, "first")["kind"] == "UNDECIDED"
        assert "not measured beside that commit: the run ended before" in found.out
    else:
        assert verdict(found, "first")["kind"] == ("SAME" if edit == ALLOWS_MORE else "SLOWER")


def test_a_suspicion_of_another_card_against_the_very_code_that_was_recorded_is_the_machines(
    recorded_elsewhere, tmp_path
):
    """Unless it is far slower, though the second test opens a log that git does not have."""
    recorded_elsewhere.git("clone", "--quiet", str(recorded_elsewhere.top), str(tmp_path / "project"))
    clone, slow = Repository(tmp_path / "project"), OTHER_CARD | {"CARD": "1.35"}
    found = read(run(clone, *COMPARE, **slow), clone)
    assert found.status == pytest.ExitCode.OK
    commit = clone.git("rev-parse", "--short=7", "HEAD~")
    for each in found.results:
        assert verdict(found, each)["kind"] == "SAME CODE"
        assert verdict(found, each)["reason"].startswith("+35.0 % ")
        assert verdict(found, each)["reason"].endswith(f"the working tree is {commit}, as recorded")
    found = read(run(clone, *COMPARE, "-k", "second", **slow | {"CARD": "1.5"}), clone)
    assert found.status == pytest.ExitCode.TESTS_FAILED
    assert verdict(found, "second")["kind"] == "SLOWER"
    assert f"tree is {commit}, as recorded: what differs is not in git" in " ".join(found.out.split())


def test_where_a_file_changed_one_session_of_the_recorded_commit_shows_that_all_tests_do_the_same(
    recorded_elsewhere, tmp_path
):
    repository = Repository(shutil.copytree(recorded_elsewhere.top, tmp_path / "project"))
    repository.write(kernels=f"{ON_CARDS}# changed")
    found = read(run(repository, *COMPARE, **OTHER_CARD), repository)
    assert found.status == pytest.ExitCode.OK
    assert {verdict(found, each)["kind"] for each in found.results} == {"SAME CODE"}
    assert found.err.count("asking what tests do") == 1, "they wait for the end, and share a session"
    assert "session 1 of" not in found.err


def test_a_shallow_clone_says_once_how_the_recorded_commit_is_fetched(recorded_elsewhere, tmp_path):
    changed = Repository(shutil.copytree(recorded_elsewhere.top, tmp_path / "origin"))
    changed.commit()
    changed.git("clone", "--quiet", "--depth=1", changed.top.as_uri(), str(tmp_path / "project"))
    clone = Repository(tmp_path / "project")
    found = read(run(clone, *COMPARE, **OTHER_CARD), clone)
    assert found.status == pytest.ExitCode.OK
    assert {verdict(found, each)["kind"] for each in found.results} == {"UNDECIDED"}
    assert len(re.findall("`fetch-depth: 0`", found.out)) == 1
    told = r"^note \S+numba.first/n=8 and 2 more: recorded on other cards only"
    assert re.search(told, found.out, re.MULTILINE)


def test_ctrl_c_beside_the_recorded_commit_leaves_nothing_behind(recorded_elsewhere, tmp_path):
    """The first session of that commit interrupts the run, once it has begun to import its kernels."""
    repository = Repository(shutil.copytree(recorded_elsewhere.top, tmp_path / "project"))
    plugin = "import os, signal, time\nif 'against-' in os.getcwd():\n    "
    plugin += "os.kill(int(open(os.environ['PID']).read()), signal.SIGINT)\n    time.sleep(60)"
    (tmp_path / "interrupts.py").write_text(
        f"{plugin}\nelif not os.path.exists(os.environ['PID']):\n"
        "    open(os.environ['PID'], 'w').write(str(os.getpid()))"
    )
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    variables = {**OTHER_CARD, "PID": str(tmp_path / "pid"), "PYTHONPATH": paths}
    found = run(repository, *COMPARE, "-p", "interrupts", **variables)
    assert found.status == pytest.ExitCode.INTERRUPTED, found.out
    assert re.search(r"^=+ 4 passed in ", found.out, re.MULTILINE), "no report of a test that waits is lost"
    assert "not measured beside that commit: the run ended before" in found.out
