"""Checks that a plain test has one record, whichever process of whichever run asks for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpukern.baseline.store import Store
from pytest_gpukern.processes.sessions import ChildSessions
from pytest_gpukern.run.call_subject import case_of_test
from pytest_gpukern.session.stash import CHILD, Assignment, rootdir_of

PARTS = st.text("aé_-.+ ", min_size=1, max_size=3).filter(lambda part: part.strip("."))
FILES = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: Path(*parts[:-1], f"{parts[-1]}.py"))


def roles(here, there, rootdir, own):
    """Each process's own rootdir is `own`; that of the reporting process is `rootdir`."""
    sessions = ChildSessions((), (), str(here), (), rootdir=str(rootdir))
    yield here, SimpleNamespace(rootpath=rootdir, stash=pytest.Stash())
    told = vars(Assignment(str(rootdir), None, {}, {}))
    yield here, SimpleNamespace(rootpath=own, stash=pytest.Stash(), workerinput={"gpukern": told})
    for tree in (here, there):  # measuring and confirming sessions, and those of the other revision
        child = SimpleNamespace(rootpath=own, stash=pytest.Stash())
        begin = sessions.begin(SimpleNamespace(place=Path()), (), moved={str(here): str(tree)})
        child.stash[CHILD] = SimpleNamespace(begin=begin)
        yield tree, child


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), files=st.sets(FILES, min_size=1, max_size=4), in_repository=st.booleans())
def test_all_processes_find_one_record_of_a_test_and_no_other_tests(tmp_path, data, files, in_repository):
    kind, folder = "git" if in_repository else "plain", tmp_path / "all"
    here, there = tmp_path / kind / "here", tmp_path / kind / "base" / "there"
    for tree in (here, there) if in_repository else ():
        (tree / ".git").mkdir(parents=True, exist_ok=True)
    inside = st.sampled_from([here, *(here / file.parent for file in sorted(files))])
    rootdirs = [data.draw(inside), data.draw(inside)] if in_repository else [here]
    store, paths = Store("compare", directory_override=folder), {}
    for file in files:
        found = set()
        for rootdir in rootdirs:
            for tree, config in roles(here, there, rootdir, data.draw(inside)):
                nodeid = f"{Path(tree / file).as_posix()}::Test::test_it[a/b.c]"
                case = case_of_test(nodeid, tree / file, rootdir_of(config))
                assert Path(case.baseline_dir) == tree / file.parent / "baselines"
                found.add((store.path_for(case, "gpu"), case.id))
        assert len(found) == 1
        paths[file] = found.pop()[0]
        assert paths[file].parent == folder
    assert len(set(paths.values())) == len(files)
