"""Ini files and records of two revisions → what lets more pass than before."""

from __future__ import annotations

import dataclasses

import pytest
from made_up_records import case_of, path_in, record, result_of
from msgspec import structs
from repositories import Repository

from pytest_gpukern.baseline import codec
from pytest_gpukern.revisions.git import Revisions, resolve
from pytest_gpukern.revisions.weaker import weaker_options, weaker_records
from pytest_gpukern.values.result import Declaration

ASKED = 'gpukern_threshold = "2%"\ngpukern_fail_on = "accuracy,tail"\n'
TOML = f'[tool.pytest.ini_options]\naddopts = ["-q", "-Werror"]\nxfail_strict = true\n{ASKED}'


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("pyproject.toml", TOML, []),
        ("pyproject.toml", TOML.replace("2%", "1%"), []),
        ("pyproject.toml", TOML.replace("2%", "0.5"), ["gpukern_threshold = 2% → 0.5"]),
        ("pyproject.toml", TOML.replace('gpukern_threshold = "2%"', ""), []),
        ("pyproject.toml", TOML.replace(",tail", ",tail,host"), []),
        ("pyproject.toml", TOML.replace(",tail", ""), ["gpukern_fail_on = accuracy,tail → accuracy"]),
        (
            "pyproject.toml",
            TOML.replace(",tail", ",tail,none"),
            ["gpukern_fail_on = accuracy,tail → accuracy,tail,none"],
        ),
        ("pyproject.toml", TOML.replace('"-q"', '"-k", "fast"'), ["addopts = -q -Werror → -k fast -Werror"]),
        ("pyproject.toml", TOML.replace('"-q"', '"-ra", "--tb=short"'), []),
        ("pyproject.toml", TOML.replace(', "-Werror"', ""), ["addopts = -q -Werror → -q"]),
        ("pyproject.toml", TOML.replace("true", "false"), ["xfail_strict = True → False"]),
        (
            "pyproject.toml",
            TOML + 'gpukern_axis = "n=64"\nfilterwarnings = ["error"]',
            ["gpukern_axis = nothing → n=64"],
        ),
        (
            "pyproject.toml",
            TOML + 'gpukern_baseline_dir = "elsewhere"',
            ["gpukern_baseline_dir = nothing → elsewhere"],
        ),
        (
            ".pytest.ini",
            "[pytest]\ngpukern_threshold = 3%\ngpukern_fail_on = accuracy,tail",
            [
                "gpukern_threshold = 2% → 3%",
                "addopts = -q -Werror → nothing",
                "xfail_strict = True → nothing",
            ],
        ),
    ],
)
def test_options_of_an_ini_file_that_let_more_pass_are_told(tmp_path, file, text, told):
    for side in ("base", "head"):
        (tmp_path / side / "project").mkdir(parents=True)
        (tmp_path / side / "project/pyproject.toml").write_text(TOML)
    (tmp_path / "head/project" / file).write_text(text)
    revisions = Revisions(tmp_path / "head", "main", "", identical=False)
    assert [*weaker_options(tmp_path / "head/project", revisions, tmp_path / "base")] == told


def changed(edit):
    """A change of the only epoch of a file of records."""

    def change(folder):
        baseline = codec.load(path_in(folder))
        ((name, of),) = baseline.cases.items()
        cases = structs.replace(of, epochs=(edit(of.epochs[0]),))
        path_in(folder).write_bytes(codec.render(dataclasses.replace(baseline, cases={name: cases})))

    return change


def slower(epoch):
    first, *others = epoch.sessions
    (time,) = first.measurements
    summary = structs.replace(time.summary, high_ns=1e6)
    first = structs.replace(first, measurements=(structs.replace(time, summary=summary),))
    return structs.replace(epoch, sessions=(first, *others))


def looser(epoch):
    first, *others = epoch.sessions
    first = structs.replace(first, declared=Declaration(threshold=0.5))
    return structs.replace(epoch, sessions=(first, *others))


def fewer(epoch):
    return structs.replace(epoch, sessions=epoch.sessions[1:])


def replaced(epoch):
    return structs.replace(epoch, opened="2026-11-27T10:00:00Z")


def again(mode, **more):
    return lambda folder: record(mode, result_of(case_of(folder)), **more)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (again("append"), False),
        (again("update", reason="checks bounds"), False),
        (changed(slower), True),
        (changed(looser), True),
        (changed(fewer), True),
        (changed(replaced), True),
        (lambda folder: path_in(folder).unlink(), True),
        (lambda folder: path_in(folder).write_text("{}"), True),
    ],
    ids=["append", "update", "times", "declared", "fewer", "epoch", "deleted", "damaged"],
)
def test_records_that_no_command_would_write_are_told(tmp_path, change, told):
    repository, worktree = Repository(tmp_path / "project"), tmp_path / "worktree"
    folder, other = repository.top / "tests/baselines", repository.top / "other.json"
    record("create", *(result_of(case_of(folder)) for _ in range(3)))
    other.write_text("[1]")
    repository.commit()
    repository.git("worktree", "add", "--quiet", "--detach", str(worktree))
    other.write_text("[2]")
    change(folder)
    text = f"tests/baselines/{path_in(folder).name}: sessions on record were changed or taken out: "
    found = [*weaker_records(resolve("main", repository.top), worktree)]
    assert found == [f"{text}vector_exp-numba-n=1000"] * told
