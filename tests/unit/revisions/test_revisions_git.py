"""Checks which commit a working tree is measured against, and what is said if there is none."""

from __future__ import annotations

import pytest
from repositories import Repository

from pytest_gpukern.revisions.git import AgainstError, recorded_on, resolve
from pytest_gpukern.values.fingerprint import Provenance


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "a project")
    made.commit(kernel="first = 1")
    return made


def refusal(revision, folder):
    with pytest.raises(AgainstError) as refused:
        resolve(revision, folder)
    return str(refused.value)


def test_the_base_is_where_the_branches_parted_not_the_revision_itself(repository):
    parted = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "--quiet", "-b", "change")
    repository.commit(kernel="first = 2")
    repository.git("checkout", "--quiet", "main")
    repository.commit(other="")
    repository.git("checkout", "--quiet", "change")
    found = resolve("main", repository.top)
    assert found.base == parted
    assert found.top == repository.top
    assert str(found) == f"merge-base {parted[:7]} of main"
    assert not found.identical


def test_changes_that_are_not_committed_are_seen_and_so_are_new_files(repository):
    assert resolve("main", repository.top).identical
    repository.write(new="")
    assert not resolve("main", repository.top).identical


def test_a_folder_outside_a_repository_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "not a git repository" in refusal("main", tmp_path)


def test_an_unknown_revision_is_refused_with_how_to_fetch_it(repository):
    text = refusal("origin/mian", repository.top)
    assert text.startswith(f"'origin/mian' names no commit in {repository.top}: fetch it with its history: ")


@pytest.mark.parametrize(
    "revision", ["--output=stolen", "-h", "", " ", "main\n", "main..main", "^main", "HEAD:kernel.py", "a b"]
)
def test_what_is_no_single_commit_is_refused_and_never_an_option(repository, revision):
    assert "names no commit" in refusal(revision, repository.top)
    assert not (repository.top / "stolen").exists()


def test_odd_but_valid_names_are_revisions_too(repository):
    repository.git("branch", "feature/ü&x;y$z")
    for revision in ("feature/ü&x;y$z", "main@{0}", "HEAD~0"):
        assert resolve(revision, repository.top).base


def test_a_shallow_clone_names_the_way_to_its_history(repository, tmp_path):
    repository.git("checkout", "--quiet", "-b", "change")
    repository.commit(kernel="first = 2")
    url, shallow = repository.top.as_uri(), tmp_path / "shallow"
    repository.git("clone", "--quiet", "--depth=1", "--no-single-branch", url, str(shallow))
    text = refusal("origin/main", shallow)
    assert text.startswith(f"origin/main and HEAD have no commit in common in {shallow}: ")
    assert "`fetch-depth: 0`" in text
    assert "`--unshallow`" in text


def test_histories_without_a_common_commit_are_refused(repository):
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.commit(another="")
    assert "have no commit in common" in refusal("main", repository.top)


def test_a_machine_without_git_is_told_so(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert refusal("main", repository.top).startswith("there is no git here: install it")


def test_inside_a_hook_of_another_repository_the_folder_counts(repository, tmp_path, monkeypatch):
    other = Repository(tmp_path / "other").top
    for name, path in {"DIR": other / ".git", "INDEX_FILE": other / ".git/index", "WORK_TREE": other}.items():
        monkeypatch.setenv(f"GIT_{name}", str(path))
    assert resolve("main", repository.top).top == repository.top


def test_a_record_is_measured_on_its_commit_also_where_that_was_squashed(repository):
    main = repository.git("rev-parse", "HEAD")
    repository.git("checkout", "--quiet", "-b", "squashed")
    recorded = repository.commit(kernel="first = 2")
    repository.git("checkout", "--quiet", "main")
    repository.commit(kernel="first = 3")
    found = recorded_on(Provenance(recorded), repository.top)
    assert (found.base, found.identical) == (recorded, False)
    repository.commit(kernel="first = 2")
    assert recorded_on(Provenance(recorded), repository.top).identical, "another commit has its code"
    assert not recorded_on(Provenance(main), repository.top).identical


@pytest.mark.parametrize("base", ["", "release"])
@pytest.mark.parametrize("recorded", [Provenance(), Provenance("0" * 40), Provenance("HEAD", dirty=True)])
def test_of_a_record_whose_commit_is_not_there_the_merge_base_of_the_change_is_measured(
    repository, recorded, base
):
    parted, environ = repository.git("rev-parse", "HEAD"), {"GITHUB_BASE_REF": base}
    repository.git("update-ref", f"refs/remotes/origin/{base or 'HEAD'}", parted)
    repository.write(new="")
    with pytest.raises(AgainstError, match="fetch-depth: 0" if recorded.commit == "0" * 40 else "names no"):
        recorded_on(recorded, repository.top, environ)  # beside itself, any code is the same
    repository.commit(kernel="first = 2")
    assert recorded_on(recorded, repository.top, environ).base == parted
