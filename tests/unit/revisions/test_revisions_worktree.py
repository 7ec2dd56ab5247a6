"""A worktree of the base: made with a name to know it by, set up, removed, and pruned when left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from repositories import Repository

from pytest_gpukern.revisions.git import GitError, Worktree, prune_left_over, resolve


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = Repository(tmp_path / "a project")
    made.commit(kernel="first = 1")
    return made


@pytest.fixture
def worktree(repository):
    made = Worktree.make(resolve("main", repository.top))
    yield made
    made.remove()


KILLED = """
import os, pathlib, signal
from pytest_gpukern.revisions.git import Worktree
from pytest_gpukern.revisions.git import resolve
made = Worktree.make(resolve("main", pathlib.Path.cwd()))
print(made.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_over(repository):
    """The worktree of a run that was killed."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=repository.top, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


def test_it_holds_the_base_under_the_name_of_the_working_tree(repository, worktree):
    repository.write(kernel="first = 2")
    assert (worktree.path / "kernel.py").read_text() == "first = 1"
    assert worktree.path.name == "a project"
    base = repository.git("rev-parse", "--short=7", "HEAD")
    assert worktree.path.parent.name.startswith(f"gpukern-against-{base}-")


def test_removing_it_leaves_nothing_in_the_repository_nor_in_the_temporary_folder(repository, worktree):
    assert len(repository.worktrees) == 1
    worktree.remove()
    assert repository.worktrees == []
    assert not worktree.path.parent.exists()
    worktree.remove()  # a second time does no harm


def test_a_hook_of_the_repository_does_not_run(repository, tmp_path):
    hook = repository.top / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    Worktree.make(resolve("main", repository.top)).remove()
    assert not (tmp_path / "ran").exists()


def test_the_index_that_a_commit_hook_works_with_stays_as_it_is(repository, monkeypatch):
    index = repository.top / ".git/index"
    before = index.read_bytes()
    monkeypatch.setenv("GIT_DIR", str(repository.top / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(index))
    Worktree.make(resolve("main", repository.top)).remove()
    assert index.read_bytes() == before


def test_what_a_killed_run_left_is_pruned_by_the_next(repository):
    path = left_over(repository)
    assert path in repository.worktrees[0]
    assert [str(each) for each in prune_left_over(repository.top)] == [path]
    assert repository.worktrees == []
    assert not os.path.exists(path)  # noqa: PTH110 - it is a text


def test_what_is_left_is_pruned_too_where_the_temporary_folder_was_emptied(repository):
    path = left_over(repository)
    subprocess.run(["rm", "-r", path], check=True)
    assert [str(each) for each in prune_left_over(repository.top)] == [path]
    assert repository.worktrees == []


def test_making_a_worktree_prunes_first(repository):
    path = left_over(repository)
    made = Worktree.make(resolve("main", repository.top))
    listed = repository.worktrees
    made.remove()
    assert len(listed) == 1
    assert path not in listed[0]


def test_a_worktree_that_a_run_holds_is_not_pruned(repository, worktree):
    assert prune_left_over(repository.top) == []
    assert worktree.path.exists()


def test_worktrees_of_others_are_not_pruned(repository, tmp_path):
    for folder in (tmp_path / "mine", tmp_path / "gpukern-against-mine" / "a"):
        repository.git("worktree", "add", "--quiet", "--detach", "--lock", str(folder))
    assert prune_left_over(repository.top) == []
    assert len(repository.worktrees) == 2


def test_the_set_up_command_runs_by_the_shell_in_the_worktree(worktree):
    worktree.set_up('test "$PWD" = "$GPUKERN_WORKTREE" && echo "built here" > "a file"')
    assert (worktree.path / "a file").read_text() == "built here\n"


def test_a_set_up_command_that_fails_is_an_error_with_its_last_lines(worktree):
    with pytest.raises(GitError) as failed:
        worktree.set_up("echo compiling; echo no nvcc >&2; exit 3")
    first, *lines = str(failed.value).splitlines()
    assert first.startswith("--gpukern-against-setup=echo compiling; ")
    assert "status 3" in first
    assert lines == ["compiling", "no nvcc"]
