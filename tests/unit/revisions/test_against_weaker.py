"""Ini files and records of two revisions → what lets more pass than before."""

from __future__ import annotations

import json
import shutil

import pytest
from made_up_records import case_of, path_in, record, result_of
from repositories import Repository

from pytest_gpukern.revisions.git import Revisions, resolve
from pytest_gpukern.revisions.weaker import weaker_options, weaker_records

ASKED = 'gpukern_threshold = "2%"\ngpukern_fail_on = "accuracy,tail"\n'
TOML = f'[tool.pytest.ini_options]\naddopts = ["-q", "-Werror"]\nxfail_strict = true\n{ASKED}'


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("", "", []),
        ("2%", "1%", []),
        ("2%", "0.5", ["gpukern_threshold = 2% → 0.5"]),
        ('gpukern_threshold = "2%"', "", []),
        (",tail", ",tail,host", []),
        (",tail", "", ["gpukern_fail_on = accuracy,tail → accuracy"]),
        (",tail", ",tail,none", ["gpukern_fail_on = accuracy,tail → accuracy,tail,none"]),
        ('"-q"', '"-k", "fast"', ["addopts = -q -Werror → -k fast -Werror"]),
        ('"-q"', '"-ra", "--tb=short"', []),
        (', "-Werror"', "", ["addopts = -q -Werror → -q"]),
        ("true", "false", ["xfail_strict = True → False"]),
        ("true", "'1'", []),
        ("xfail_strict", "strict_xfail", []),
        ('"-q"', '"-l", "--tb", "short", "--verbose"', []),
        ('"-q"', '"--tb", "short", "--lf"', ["addopts = -q -Werror → --tb short --lf -Werror"]),
        ("addopts", 'filterwarnings = ["error"]\naddopts', []),
        ("addopts", 'gpukern_baseline_dir = "a"\naddopts', ["gpukern_baseline_dir = nothing → a"]),
    ],
)
def test_options_of_an_ini_file_that_let_more_pass_are_told(tmp_path, was, now, told):
    base, head = tmp_path / "base/project", tmp_path / "head/project"
    base.mkdir(parents=True)
    (base / "pyproject.toml").write_text(TOML)
    shutil.copytree(base, head)
    (head / "pyproject.toml").write_text(TOML.replace(was, now))
    revisions = Revisions(tmp_path / "head", "main", "", identical=False)
    assert [*weaker_options(head, revisions, tmp_path / "base")] == told
    (head / ".pytest.ini").write_text("[pytest]\ngpukern_threshold = 3%\ngpukern_fail_on = accuracy,tail")
    found = [*weaker_options(head, revisions, tmp_path / "base")]
    lost = ["addopts = -q -Werror → nothing", "xfail_strict = True → nothing"]
    assert found == ["gpukern_threshold = 2% → 3%", *lost], "of the file that pytest reads"


def changed(edit):
    """A change of the only epoch of a file of records."""

    def change(folder):
        content = json.loads(path_in(folder).read_text())
        edit(content["records"][0]["epochs"][0])
        path_in(folder).write_text(json.dumps(content))

    return change


def again(mode, **more):
    return lambda folder: record(mode, result_of(case_of(folder)), **more)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (again("append"), False),
        (again("update", reason="checks bounds"), False),
        (changed(lambda epoch: epoch["sessions"][0]["measurements"][0]["summary"].update(high_ns=1e6)), True),
        (changed(lambda epoch: epoch["sessions"][0].update(declared={"threshold": 0.5})), True),
        (changed(lambda epoch: epoch["sessions"].pop(0)), True),
        (changed(lambda epoch: epoch.update(opened="2026-11-27T10:00:00Z")), True),
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
