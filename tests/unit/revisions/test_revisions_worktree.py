"""Checks a worktree of the base: made under a name of ours, set up, removed, and pruned when left over."""

from __future__ import annotations

import shutil

import pytest
from repositories import Repository

from pytest_gpukern.revisions.git import AgainstError, forget_left_over, resolve, set_up, worktree


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = Repository(tmp_path / "a project")
    made.commit(kernel="first = 1")
    return made


def made(repository):
    return worktree(resolve("main", repository.top))


@pytest.fixture
def path(repository):
    with made(repository) as path:
        yield path


def test_it_holds_the_base_under_the_name_of_the_working_tree(repository, path):
    repository.write(kernel="first = 2")
    assert (path / "kernel.py").read_text() == "first = 1"
    assert path.name == "a project"
    base = repository.git("rev-parse", "--short=7", "HEAD")
    assert path.parent.name.startswith(f"gpukern-against-{base}-")


@pytest.mark.parametrize("gone", [False, True])
def test_removing_it_leaves_nothing_in_the_repository_nor_in_the_temporary_folder(repository, gone):
    with made(repository) as path:
        assert len(repository.worktrees) == 1
        if gone:  # as after somebody emptied the temporary folder
            shutil.rmtree(path.parent)
    assert repository.worktrees == []
    assert not path.parent.exists()


def test_no_hook_runs_and_the_index_that_a_hook_works_with_stays_as_it_is(repository, tmp_path, monkeypatch):
    hook = repository.top / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    index = repository.top / ".git/index"
    before = index.read_bytes()
    monkeypatch.setenv("GIT_DIR", str(repository.top / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(index))
    with made(repository):
        pass
    assert index.read_bytes() == before
    assert not (tmp_path / "ran").exists()


def test_what_a_killed_run_left_is_forgotten_by_the_next(repository, path):
    shutil.rmtree(path.parent)  # as a later run does, or who empties the temporary folder
    with made(repository) as fresh:
        (listed,) = repository.worktrees
        assert str(fresh) in listed


def test_worktrees_of_others_stay(repository, tmp_path):
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "mine"))
    shutil.rmtree(tmp_path / "mine")
    forget_left_over(repository.top)
    assert len(repository.worktrees) == 1


def test_the_set_up_command_runs_by_the_shell_in_the_worktree(path):
    set_up(path, 'test "$PWD" = "$GPUKERN_WORKTREE" && echo "built here" > "a file"')
    assert (path / "a file").read_text() == "built here\n"


def test_a_set_up_command_that_fails_is_an_error_with_its_last_lines(path):
    with pytest.raises(AgainstError) as failed:
        set_up(path, "echo compiling; echo no nvcc >&2; exit 3")
    first, *lines = str(failed.value).splitlines()
    assert first.startswith("--gpukern-against-setup=echo compiling; ")
    assert "status 3" in first
    assert lines == ["compiling", "no nvcc"]
