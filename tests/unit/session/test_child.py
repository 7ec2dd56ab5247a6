"""Checks the process that runs tests as it is told: its turn in this process, and pytest in real ones."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest
from plugin.fake_gpu import lock_state

from pytest_gpukern.gpu.libcuda import LibCuda
from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.processes.messages import Begin, ChildRequest, Import, encoded
from pytest_gpukern.processes.sessions import ChildSessions, Ending
from pytest_gpukern.session.child import files_to_collect, wait_for_turn

BEGIN = Begin((), (), ChildRequest())
NAMES = ("early_first", "early_second")
FIRST, SECOND = map(Import, NAMES)


@pytest.fixture
def waits(tmp_path, monkeypatch):
    """Has this process wait for its turn; it is sent these messages before. It can import `NAMES`."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.py").touch()
        sys.modules.pop(name, None)

    def wait(*messages, busy=None):
        ours, theirs = Pipe()
        with theirs:
            with ours:
                for message in messages:
                    ours.send_bytes(encoded(message))
            return wait_for_turn(theirs, {"busy": busy})

    return wait


def test_a_process_imports_before_its_turn_what_can_be_imported_and_ends_without_one(waits):
    assert waits(FIRST, Import("early_none_such"), SECOND, BEGIN) == BEGIN
    assert sys.modules.keys() >= {*NAMES}
    with pytest.raises(SystemExit, match="the run had no turn for this session"):
        waits(FIRST)


def test_a_process_that_makes_a_context_before_its_turn_ends_but_in_its_turn_it_may(waits, monkeypatch):
    monkeypatch.setattr(LibCuda, "has_context", lambda self: NAMES[0] in sys.modules)
    assert waits(FIRST, SECOND, BEGIN) == BEGIN
    assert NAMES[1] not in sys.modules, "it is left to the test files"
    monkeypatch.setattr(Connection, "poll", lambda self: False)
    with pytest.raises(SystemExit, match="early_first makes a CUDA context when it is imported"):
        waits(FIRST)


def test_a_process_imports_nothing_while_something_is_timed_on_the_host_and_is_busy_from_its_start(
    waits, tmp_path, monkeypatch
):
    timed = []
    monkeypatch.setenv("GPUKERN_RUN_FOLDER", str(tmp_path))

    def time_something():
        with HostTurns(tmp_path).alone():
            time.sleep(0.1)
            timed.append(NAMES[0] in sys.modules)

    busy = HostTurns(tmp_path).busy_from_its_start()
    timing = threading.Thread(target=time_something)
    timing.start()
    while not (tmp_path / "host-gate").exists() or lock_state(tmp_path / "host-gate") == "free":
        time.sleep(0.001)
    time.sleep(0.05)
    assert timed == [], "it waits for the process that starts"
    assert waits(FIRST, BEGIN, busy=busy) == BEGIN
    timing.join()
    assert timed == [False]
    assert NAMES[0] in sys.modules


def runs(folder, *wanted, **request):
    """What real processes find of these tests of a folder."""
    children = ChildSessions(("-pno:benchmark",), (), (".",), str(folder), (str(folder), *sys.path))
    return children.run(ChildRequest(wanted, **request))


CLEAN = "assert gc.isenabled() and gc.get_freeze_count() > 9999 > len(gc.get_objects())"


def test_a_real_process_runs_what_it_finds_and_names_what_it_does_not(tmp_path):
    """pytest takes a bracket in an argument for parameters, and warns of plugins that were imported early."""
    file = tmp_path / "sm[90]" / "test_a.py"
    file.parent.mkdir()
    file.write_text(f"import gc\ndef test_b(): {CLEAN}\ndef test_c(gpu_benchmark): assert 0")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error")
    (tmp_path / "pytest_gpukern.py").write_text("raise ImportError('of another revision')")
    (tmp_path / "test_d.py").write_text("import not_there")
    wanted = ("sm[90]/test_a.py::test_b", "test_d.py::test_c", "gone.py::test_d")
    found = runs(tmp_path, *wanted, watched_roots=(str(tmp_path),), watched_names=("json",))
    assert found.endings.pop("test_d.py::test_c").text.startswith("test_d.py could not be collected: ")
    assert found.endings == {"sm[90]/test_a.py::test_b": Ending("passed")}
    assert found.problem.startswith("not found: gone.py::test_d, ")
    assert found.others == ()
    *others, own = found.modules
    assert own == ("test_a", str(file), hashlib.sha256(file.read_bytes()).hexdigest())
    assert {module.name.partition(".")[0] for module in others} == {"json"}


def test_a_real_process_that_collects_all_lists_our_unwanted_tests_and_a_test_may_end_it(tmp_path):
    others = "def test_e(): pass\ndef test_f(gpu_benchmark): pass\n"
    (tmp_path / "test_a.py").write_text(f"import pytest\n{others}def test_c(): pytest.exit('enough')")
    (tmp_path / "test_d.py").write_text(others)
    found = runs(tmp_path, "test_a.py::test_c", collects_all=True)
    assert found.others == ("test_a.py::test_f", "test_d.py::test_f")
    assert found.problem.startswith("it was ended by 'enough' while running test_a.py::test_c: ")
    assert (found.endings, found.exit) == ({}, "enough")


def test_a_test_that_a_real_process_cannot_collect_has_failed_and_the_others_run(tmp_path):
    """pytest refuses to run anything where it cannot collect the folder of a file that it is given."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("import not_there_at_all")
    for file in ("tests/test_a.py", "test_b.py"):
        (tmp_path / file).write_text("def test_c(): pass")
    found = runs(tmp_path, "tests/test_a.py::test_c", "test_b.py::test_c")
    why = found.endings["tests/test_a.py::test_c"].text
    assert why.startswith("tests could not be collected: ")
    assert "'not_there_at_all'" in why
    assert [ending.outcome for ending in found.endings.values()] == ["failed", "passed"]
    assert (found.problem, found.ended_early) == (None, False)


def test_only_the_files_of_wanted_tests_are_collected_where_they_can_be_told(tmp_path):
    (tmp_path / "test_a.py").touch()
    wanted = ["test_a.py::test_b[x::y]", "test_a.py::test_c"]
    assert files_to_collect(wanted, tmp_path) == [str(tmp_path / "test_a.py")]
    assert files_to_collect([*wanted, "gone.py::test_d"], tmp_path) is None
    (tmp_path / "sm[90].py").touch()
    assert files_to_collect([*wanted, "sm[90].py::test_d"], tmp_path) is None
