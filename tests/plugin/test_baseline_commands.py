"""Checks that `gpukern` tells of records, and prunes and accepts them, without a GPU."""

import dataclasses
import fnmatch
import json
import subprocess
from datetime import UTC, datetime

import made_up_records
import pytest
from made_up_runs import whole_run
from msgspec import structs
from repositories import Repository

from pytest_gpukern.baseline.code_file import CodeFile, RecordedCode, rendered
from pytest_gpukern.baseline.code_file import load as load_code
from pytest_gpukern.baseline.codec import load
from pytest_gpukern.baseline.store import Store
from pytest_gpukern.cli import main as cli
from pytest_gpukern.report.run_file import read_run, run_text
from pytest_gpukern.values.result import CompiledCode

from .conftest import FIRST, SECOND

KEY = "kernel/event/cold"


@pytest.fixture
def gpukern(capsys, pytester):
    """Runs a command; returns its exit status, and what it printed and complained about."""

    def run(*arguments):
        capsys.readouterr()
        status = cli.main(list(map(str, arguments)))
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def file(files, gpukern, monkeypatch):
    """A baseline of one session of 1 µs for both variants, in the current folder."""
    monkeypatch.chdir(files)
    (files / "before").rename("baselines")
    return files / "baselines" / "doubling.fake-gpu.json"


@pytest.fixture
def slower_run(file, files):
    """The file of a run with the first variant slower than recorded, as an artifact of CI."""
    return (files / "after.json").rename("run.json").absolute()


def epochs(file, case_id=FIRST):
    return load(file).cases[case_id].epochs


def edit_run(path, change):
    """Changes the first result of a run file."""
    content = whole_run(path)
    change(content["results"][0])
    path.write_text(json.dumps(content))


def test_details_of_records_and_of_runs_are_told_with_epochs_reasons_and_medians(gpu, gpukern, monkeypatch):
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    gpu("--gpukern-baseline=update", "--gpukern-reason=more exact", "-k", "first")
    monkeypatch.setenv("FIRST_TAKES_NS", "1111")
    gpu("--gpukern-baseline=append", "-k", "first")
    file = "baselines/doubling.fake-gpu.json"
    status, shown, _ = gpukern("report", file, "-k", "first")
    assert status == 0
    pytest.LineMatcher(shown.splitlines()).fnmatch_lines(
        [
            "  numba.first * 1.111 µs *",
            FIRST,
            f"  20??-??-??, 1 session, {KEY} 1.00 µs",
            f"  20??-??-??, 2 sessions, {KEY} 1.11 µs: more exact",
        ],
        consecutive=False,
    )
    assert SECOND not in shown
    told, epochs = gpukern("report", file)[1], f"{KEY} 1.11 µs: more exact"
    assert ("numba.second" in told, epochs in told) == (True, False)
    gpu("--gpukern-report=run.json")
    assert epochs in gpukern("report", "run.json", "-k", "first")[1]


# --- prune ----------------------------------------------------------------------------------------


def test_prune_removes_cases_by_name_or_pattern_and_with_the_last_one_the_file(gpukern, file):
    before = file.read_bytes()
    status, _, complaints = gpukern("baseline", "prune", file, "--case", FIRST, "doubling/numba.secnd/n=8")
    assert status == 1
    assert f"no case 'doubling/numba.secnd/n=8' among 2; did you mean '{SECOND}'?" in complaints
    chosen = ("baseline", "prune", file, "--case", "*.second/*")
    status, listed, _ = gpukern(*chosen, "--dry-run")
    assert (status, listed) == (0, f"would remove {SECOND}\n")
    assert file.read_bytes() == before
    assert gpukern(*chosen)[:2] == (0, f"removed {SECOND}\n")
    assert load(file).cases.keys() == {FIRST}
    assert gpukern("baseline", "prune", file, "--case", "*")[0] == 0
    assert list(file.parent.iterdir()) == []


# --- rename ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "label"),
    [
        (FIRST, "doubling/numba.one/n=8", "numba.one"),
        ("doubling/numba.first", "doubling/cupy.one", "cupy.one"),
        ("doubling/numba.first/*", "doubling/numba.one/*", "numba.one"),
    ],
    ids=["a case", "a variant", "a pattern"],
)
def test_records_are_renamed_with_all_that_they_hold(gpukern, file, old, new, label):
    compiled = {name: RecordedCode({"sm_90": CompiledCode(f"made for {name}")}) for name in (FIRST, SECOND)}
    code = file.with_name("doubling.code.json")
    code.write_bytes(rendered(CodeFile("doubling", compiled)))
    file.with_name("other.code.json").write_bytes(rendered(CodeFile("other", {})))  # has no such case
    before = {path: path.read_bytes() for path in file.parent.iterdir()}
    status, would, _ = gpukern("baseline", "rename", old, new, "baselines", "--dry-run")
    assert (status, {path: path.read_bytes() for path in file.parent.iterdir()}) == (0, before)
    status, shown, _ = gpukern("baseline", "rename", old, new)
    assert (status, shown) == (0, would.replace("would rename", "renamed"))
    assert len(shown.split("\n")) == 2 + 1, "a line for each record, and none for other files"
    renamed = f"doubling/{label}/n=8"
    (session,) = load(file).cases[renamed].sessions
    assert (session.case.id, session.case.label, session.nodeid) == (renamed, label, renamed)
    assert load(file).cases.keys() == load_code(code).cases.keys() == {renamed, SECOND}
    assert gpukern("baseline", "rename", new.removesuffix("/*"), old.removesuffix("/*"), file.parent)[0] == 0
    assert {path: path.read_bytes() for path in file.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            FIRST,
            SECOND,
            f"'{SECOND}' is on record already. Keep one of both: gpukern baseline prune baselines/",
        ),
        ("doubling/numba.frist/n=8", SECOND, "no case 'doubling/numba.frist/n=8' among 2; did you mean "),
        ("doubling/numba.fir", "doubling/numba.one", "no case 'doubling/numba.fir' among 2; did you mean "),
        ("doubling", "twice", "'twice' has another file than 'doubling': records move within a problem"),
        (FIRST, "", "'' is no id of a case"),
        ("doubling/numba.first", "doubling/numba.second", f"'{SECOND}' is on record already"),
    ],
)
def test_a_name_that_is_taken_or_that_no_case_has_is_refused(gpukern, file, old, new, words):
    before = file.read_bytes()
    status, _, complaints = gpukern("baseline", "rename", old, new, "baselines")
    assert (status in (1, 3), words in complaints) == (True, True), complaints
    assert [path.read_bytes() for path in file.parent.iterdir()] == [before]


# --- merge ----------------------------------------------------------------------------------------


def accept(*arguments):
    return ("baseline", "merge", *arguments, "--reason", "exact now")


def test_an_intended_slowdown_is_accepted_from_a_run_file_once(slower_run, gpukern, file):
    append = ("baseline", "merge", slower_run, "--append")
    status, shown, complaints = gpukern(*accept(slower_run, "--accept", FIRST))
    assert (status, complaints) == (0, "")
    assert shown.splitlines() == [f"wrote {file}", f"new epoch of: {FIRST}"]
    assert [epoch.reason for epoch in epochs(file)] == [None, "exact now"]
    created = json.loads(slower_run.read_text())["created"][:19]
    assert epochs(file)[1].sessions[0].recorded == f"{created}Z"
    status, shown, _ = gpukern(*append, "--accept", "*second*")
    assert (status, f"further sessions of: {SECOND}\n" in shown) == (0, True)
    for arguments in (accept(slower_run, "--accept", FIRST), (*append, "--all")):
        status, _, complaints = gpukern(*arguments)
        assert status == 1
        assert f"not recorded: {FIRST}: " in complaints
    assert [len(epoch.sessions) for epoch in epochs(file)] == [1, 1]
    assert [len(epoch.sessions) for epoch in epochs(file, SECOND)] == [2]


def test_several_results_of_a_case_become_its_sessions(slower_run, gpukern, file):
    run = read_run(slower_run)
    first, second = run.results
    sessions = [(first, "0000000a"), (second, "0000000b"), (first, "0000000c"), (second, "0000000c")]
    results = [structs.replace(result, session=session) for result, session in sessions]
    slower_run.write_text(run_text(dataclasses.replace(run, results=results)))
    assert gpukern(*accept(slower_run, "--all"))[0] == 0
    assert [session.session for session in epochs(file)[1].sessions] == ["0000000a", "0000000c"]


def record(folder, mode, day, *variants, reason=None):
    """Records a session of each variant on a day of November."""
    store = Store(mode, reason=reason, now=lambda: datetime(2026, 11, day, tzinfo=UTC))
    for variant in variants:
        case = made_up_records.case_of(folder, variant)
        store.add(made_up_records.result_of(case, session=f"day{day}"), model_key=made_up_records.H200)
    assert not store.flush().refused


def held(path):
    """Case → the sessions of each epoch, in a baseline."""
    cases = load(path).cases.items()
    return {
        name.split("-")[1]: [[of.session for of in epoch.sessions] for epoch in record.epochs]
        for name, record in cases
    }


THEIRS = [
    ("update", 3, "a"),
    ("append", 4, "b"),
    ("create", 5, "c"),
    ("update", 9, "d"),
    ("create", 11, "bb"),
]
OURS = [("update", 2, "a"), ("append", 6, "b"), ("create", 7, "e"), ("append", 8, "d")]
UNITED = {
    "a": [["day1"], ["day2"], ["day3"]],
    "b": [["day1", "day4", "day6"]],
    "bb": [["day11"]],
    "c": [["day5"]],
    "d": [["day1", "day8"], ["day9"]],
    "e": [["day7"]],
}


@pytest.fixture(params=["merge", "diff3", "zdiff3"])
def in_conflict(request, tmp_path, monkeypatch):
    """A baseline with git's marks, and the two sides of it; what one side alone changed, git has merged."""
    repository, folder = Repository(tmp_path), tmp_path / "baselines"
    monkeypatch.chdir(tmp_path)
    record(folder, "create", 1, *"abd", *(f"b{letter}" for letter in "vwxyz"))
    repository.commit()
    path = made_up_records.path_in(folder)
    for branch, steps in ("theirs", THEIRS), ("ours", OURS):
        repository.git("checkout", "-qb", branch, "main")
        for mode, day, variant in steps:
            record(folder, mode, day, variant, reason=f"of day {day}")
        repository.commit()
        path.with_name(branch).write_bytes(path.read_bytes())
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("-c", f"merge.conflictstyle={request.param}", "merge", "theirs")
    return path, path.with_name("ours"), path.with_name("theirs")


def test_two_baselines_are_united_as_files_or_as_the_sides_of_a_conflict(in_conflict, gpukern):
    marked, ours, theirs = in_conflict
    remedy = f"holds an unresolved merge conflict. Unite both sides: gpukern baseline merge {marked}."
    assert remedy in gpukern("report", marked)[2]
    status, shown, _ = gpukern("baseline", "merge", marked)
    assert status == 0
    assert {name: of for name, of in held(marked).items() if name in UNITED} == UNITED
    wrote, *lines = shown.splitlines()
    assert wrote == f"wrote {marked}"
    rivals = ("that of 2026-11-03 (of day 3)", "that of 2026-11-02 (of day 2)")
    assert [line.replace("vector_exp-", "").replace("-n=1000", "") for line in lines] == [
        *("recorded for the first time: bb", "recorded for the first time: c"),
        *("further sessions of: b", "new epoch of: a", "new epoch of: d"),
        "each side opened an epoch: {} judges, since it was opened last; {} stays in the record: a".format(
            *rivals
        ),
    ]
    assert gpukern("baseline", "merge", ours, theirs, "--into", "new")[0] == 0
    assert (marked.parent.parent / "new" / marked.name).read_bytes() == marked.read_bytes()
    assert gpukern("baseline", "merge", theirs, ours)[0] == 0
    assert theirs.read_bytes() == marked.read_bytes()
    assert gpukern("baseline", "merge", ours, marked, ours)[1].startswith(f"wrote {ours}\n")
    assert gpukern("baseline", "merge", ours, marked) == (0, "nothing was recorded\n", "")


def test_what_cannot_be_united_is_refused_and_stays(in_conflict, gpukern):
    marked, ours, theirs = in_conflict
    theirs.write_bytes(theirs.read_bytes().replace(b"nvidia-h200", b"nvidia-b200", 1))
    cut = marked.with_name("cut")
    cut.write_bytes(marked.read_bytes().replace(b"\n=======\n", b"\n", 1))
    (marked.parent / "a.code.json").touch()
    before = {path: path.read_bytes() for path in marked.parent.iterdir()}
    for files, status, words in (
        ([ours], 1, f"{ours} has no conflict marks: name a file to unite it with"),
        ([marked.parent / "a.code.json"], 1, "holds machine code, which is not united: take one side of it"),
        ([ours, theirs], 3, f"holds 'vector_exp on nvidia-b200', and {ours} 'vector_exp on nvidia-h200'"),
        ([cut], 3, "JSON is malformed: *. Take one side of the file: git checkout --ours FILE"),
    ):
        found, _, complaints = gpukern("baseline", "merge", *files)
        assert found == status
        assert fnmatch.fnmatchcase(complaints, f"*{words}*"), complaints
    assert before == {path: path.read_bytes() for path in marked.parent.iterdir()}


def test_run_files_and_baselines_are_told_apart(slower_run, gpukern, file):
    status, _, complaints = gpukern("baseline", "prune", slower_run, "--case", "*", "--dry-run")
    assert (status, "delete" in complaints) == (3, False)
    assert "is the file of a run, not a baseline. gpukern report reads it" in complaints
    status, _, complaints = gpukern("baseline", "merge", file, "--all", "--append")
    assert status == 3
    assert "is a baseline, not the file of a run. gpukern report and compare read it" in complaints
    status, _, complaints = gpukern("baseline", "prune", file.parent, "--case", "*", "--dry-run")
    assert status == 3
    assert "is a folder, not a baseline file. Name one of its files" in complaints


def test_a_plain_test_that_ran_with_a_shared_folder_is_recorded_where_a_run_without_one_looks(
    gpu, pytester, gpukern
):
    pytester.path.joinpath("test_doubling.py").unlink()
    pytester.mkdir("tests").joinpath("test_plain.py").write_text(
        "def call(): pass\ndef test_it(gpu_benchmark): gpu_benchmark(call)"
    )
    gpu("--gpukern-baseline-dir=shared", "--gpukern-report=run.json").assert_outcomes(passed=1)
    assert gpukern(*accept("run.json", "--all"))[0] == 0
    assert [path.name for path in pytester.path.glob("tests/baselines/*")] == ["test_plain.fake-gpu.json"]
    gpu().stdout.no_fnmatch_line("*nothing recorded yet*")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda result: result.update(correctness="INCORRECT", diagnosis="y[3] is 0"),
            "INCORRECT: y[3] is 0",
        ),
        (
            lambda result: result["measurements"][0]["samples_ns"].append(None),
            f"{KEY} has a time that is not finite",
        ),
        (
            lambda result: result.update(nodeid="../test_doubling.py::t"),
            "its test ../test_doubling.py is not below this folder: run this",
        ),
        (
            lambda result: result["case"].update(baseline_name="../../evil"),
            "baseline name '../../evil' cannot",
        ),
    ],
    ids=["incorrect", "infinite sample", "outside", "name"],
)
def test_what_must_not_be_recorded_is_refused_and_the_rest_recorded(
    slower_run, gpukern, file, files, change, reason
):
    before = epochs(file)
    edit_run(slower_run, change)
    (files.parent / "test_doubling.py").touch()
    status, _, complaints = gpukern(*accept(slower_run, "--all"))
    assert status == 1
    assert f"not recorded: {FIRST}: " in complaints
    assert reason in complaints
    assert epochs(file) == before
    assert len(epochs(file, SECOND)) == 2


def test_the_other_machines_folder_is_not_used(slower_run, gpukern, file, tmp_path):
    elsewhere = tmp_path / "theirs"
    edit_run(slower_run, lambda result: result["case"].update(baseline_dir=str(elsewhere)))
    assert gpukern(*accept(slower_run, "--accept", FIRST))[0] == 0
    assert not elsewhere.exists()
    assert len(epochs(file)) == 2


def test_a_link_that_leads_out_of_this_folder_is_not_followed(slower_run, gpukern, files, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "test_doubling.py").touch()
    (files / "linked").symlink_to(outside)
    edit_run(slower_run, lambda result: result.update(nodeid="linked/test_doubling.py::t"))
    assert gpukern(*accept(slower_run, "--accept", FIRST))[0] == 1
    assert [path.name for path in outside.iterdir()] == ["test_doubling.py"]


def test_records_go_where_they_are_told_to(slower_run, gpukern, files, monkeypatch):
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files / "elsewhere")
    status, _, complaints = gpukern(*accept(slower_run, "--all"))
    assert status == 1
    assert "give --into FOLDER" in complaints
    assert gpukern(*accept(slower_run, "--all", "--into", "records"))[0] == 0
    assert len(load(files / "elsewhere" / "records" / "doubling.fake-gpu.json").cases) == 2


def test_an_unknown_case_is_refused_with_the_nearest(slower_run, gpukern, file):
    before = file.read_bytes()
    status, _, complaints = gpukern(*accept(slower_run, "--accept", SECOND, "doubling/numba.frist/n=8"))
    assert status == 1
    assert f"no case 'doubling/numba.frist/n=8' among 2; did you mean '{FIRST}'?" in complaints
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--reason", " "],
        ["--reason", "TEXT"],
        ["--append", "--reason", "new tiles"],
        ["--all", "--reason", "x"],
        ["--reason", "x", "--into", "b", "b.json"],
    ],
    ids=["none", "blank", "placeholder", "append", "all and some", "two files"],
)
def test_an_epoch_needs_a_reason_and_one_choice_of_cases(slower_run, gpukern, file, options):
    before = file.read_bytes()
    with pytest.raises(SystemExit) as end:
        gpukern("baseline", "merge", slower_run, "--accept", FIRST, *options)
    assert end.value.code == 2
    assert file.read_bytes() == before


def test_ci_changes_records_only_when_told_to(slower_run, gpukern, file, monkeypatch):
    monkeypatch.setenv("CI", "1")
    before = file.read_bytes()
    rename = ("baseline", "rename", FIRST, "doubling/numba.one/n=8")
    for arguments in (accept(slower_run, "--all"), ("baseline", "prune", file, "--case", SECOND), rename):
        status, _, complaints = gpukern(*arguments)
        assert status == 1
        assert "CI may not write baselines; add --write-in-ci" in complaints
        assert "merge" in arguments or gpukern(*arguments, "--dry-run")[0] == 0
        assert file.read_bytes() == before
        assert gpukern(*arguments, "--write-in-ci")[0] == 0
        before = file.read_bytes()
