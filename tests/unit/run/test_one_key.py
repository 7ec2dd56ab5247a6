"""Checks that a plain test has one name and one record, whichever process of whichever run asks for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpukern.baseline.store import Store
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.run.call_subject import info_of_test
from pytest_gpukern.session.arguments import sessions_of

PARTS = st.text("aé_-.+ ", min_size=1, max_size=3).filter(lambda part: part.strip("."))
FILES = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: Path(*parts[:-1], f"{parts[-1]}.py"))


def processes(parser, here, there, rootdir, own):
    """Returns tree and rootdir of each process of a run; one that is told no rootdir may find any, `own`."""
    config = SimpleNamespace(
        getini=lambda _: [],
        invocation_params=SimpleNamespace(args=(), plugins=(), dir=here),
        rootpath=rootdir,
        pluginmanager=SimpleNamespace(is_blocked=lambda _: False),
        option=SimpleNamespace(),
        _parser=parser,
    )
    sessions = sessions_of(config, device=None, seed=None, environ={})
    found = [(here, rootdir)]
    for tree in (here, there):  # measuring and confirming sessions, and those of the other revision
        begin = sessions.begin(SimpleNamespace(place=Path()), ChildRequest(moved={str(here): str(tree)}))
        told = [given for given in begin.arguments if given.startswith("--rootdir=")]
        at = os.path.expandvars(told[-1].removeprefix("--rootdir=")) if told else own
        found.append((tree, Path(os.path.normpath(tree / at))))
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), files=st.sets(FILES, min_size=1, max_size=4), in_repository=st.booleans())
def test_all_processes_find_one_name_and_record_of_a_test_and_no_other_tests(
    tmp_path, pytestconfig, data, files, in_repository
):
    kind, folder = "git $HOME" if in_repository else "plain $HOME", tmp_path / "all"
    here, there = tmp_path / kind / "here", tmp_path / kind / "base" / "there"
    for tree in (here, there) if in_repository else ():
        (tree / ".git").mkdir(parents=True, exist_ok=True)
    inside = st.sampled_from([here, *(here / file.parent for file in sorted(files))])
    rootdirs = [data.draw(inside), data.draw(inside)] if in_repository else [here]
    runs = [processes(pytestconfig._parser, here, there, rootdir, data.draw(inside)) for rootdir in rootdirs]
    store, paths = Store("compare", directory_override=folder), {}
    for file in files:
        found = set()
        for run in runs:
            names = {Path(os.path.relpath(tree / file, rootdir)).as_posix() for tree, rootdir in run}
            assert len(names) == 1
            for tree, rootdir in run:
                case = info_of_test(f"{min(names)}::Test::test_it[a/b.c]", tree / file, rootdir)
                assert Path(case.baseline_dir) == tree / file.parent / "baselines"
                found.add((store.path_for(case, "gpu"), case.id))
        assert len(found) == 1
        paths[file] = found.pop()[0]
        assert paths[file].parent == folder
    assert len(set(paths.values())) == len(files)
