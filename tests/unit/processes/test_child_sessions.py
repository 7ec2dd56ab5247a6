"""Checks child sessions from their parent's side; scripts play the children and write what pytest would."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from made_up_results import measured, result
from plugin.fake_gpu import lock_state
from pytest_gpukern.processes.child_main import files_to_collect, loaded_below

from pytest_gpukern.gpu.lock import HostTurns
from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes import child_sessions as session
from pytest_gpukern.processes.sessions import ChildRequest, ChildRun, ChildSessions, Heard
from pytest_gpukern.values.result import Result

PACKAGE = str(Path(session.__file__).parents[2])
A, B = "test_it.py::test_a", "test_it.py::test_b"
FOUND = result("cupy.exp", measured())

TELLING = """
import json, os, signal, subprocess, sys, time
spec = json.load(open(sys.argv[1]))
lines = open(spec["lines"], "a")
def tell(kind, **values):
    print(json.dumps({"kind": kind, **values}), file=lines, flush=True)
def passed(nodeid):
    tell("start", nodeid=nodeid)
    tell("test", nodeid=nodeid, outcome="passed", text="", result=FOUND)
print("a word about it", flush=True)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Runs a script as the child session of tests A and B."""

    def run(script, *, sessions=None, progress=None, **request):
        telling = f"FOUND = json.loads({json.dumps(FOUND.to_json())!r})"
        monkeypatch.setattr(session, "BOOTSTRAP", f"import json\n{telling}\n{TELLING}\n{script}")
        children = sessions or ChildSessions(("--mine=1",), ("tests",), str(tmp_path), tuple(sys.path))
        return children.run(ChildRequest((A, B), **{"timeout_s": 30.0, **request}), progress)

    return run


def test_what_a_child_finds_arrives_and_ends_without_a_problem(child):
    told = []
    found = child(
        "passed(spec['nodeids'][0]); time.sleep(0.2); passed(spec['nodeids'][1]); tell('end', status=0)",
        progress=lambda finished, total: told.append((finished, total)),
    )
    assert found.results == {A: FOUND, B: FOUND}
    assert found.outcomes == {A: ("passed", ""), B: ("passed", "")}
    assert (found.problem, found.during, found.status) == (None, None, 0)
    assert told[-1] == (2, 2)
    assert all(total == 2 for _, total in told)


def test_a_command_may_stand_before_the_childs_and_its_status_counts(child, tmp_path):
    prefix = ("sh", "-c", f'echo "$#" > {tmp_path}/before; "$@"; exit 86', "sh")
    found = child(
        f"assert spec['parent'] is None; passed({A!r}); passed({B!r}); tell('end', status=0)",
        command_prefix=prefix,
    )
    assert (tmp_path / "before").read_text() == "5\n"
    assert (found.problem, found.status) == (None, 86)


def test_a_teardown_that_fails_leaves_what_was_measured(child):
    torn = "tell('test', nodeid=spec['nodeids'][0], outcome='failed', text='teardown', result=None)"
    found = child(f"passed({A!r}); passed({B!r}); {torn}; tell('end', status=1)")
    assert found.outcomes[A] == ("failed", "teardown")
    assert found.results[A] == FOUND


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it ended by SIGSEGV while running"),
        ("os._exit(0)", "it ended with status 0 while running"),
    ],
)
def test_a_child_that_dies_names_its_end_its_test_and_its_last_words_and_keeps_what_it_had(child, end, words):
    found = child(f"passed({A!r}); tell('start', nodeid={B!r}); {end}")
    assert found.problem == f"{words} {B}: a word about it"
    assert (found.during, found.ended_early) == (B, True)
    assert found.results == {A: FOUND}


def test_tests_after_a_crash_run_in_another_child_and_the_crashing_test_fails(child):
    told = []
    found = child(
        f"if spec['nodeids'][0] == {A!r}: tell('start', nodeid={A!r}); os.abort()\n"
        f"passed({B!r}); tell('end', status=0)",
        progress=lambda finished, total: told.append((finished, total)),
    )
    assert found.outcomes == {
        A: ("failed", f"it ended by SIGABRT while running {A}: a word about it"),
        B: ("passed", ""),
    }
    assert found.results == {B: FOUND}
    assert (found.problem, found.during, found.ended_early) == (None, None, False)
    assert told[-1] == (2, 2)


def test_a_child_that_ends_before_every_test_is_not_retried_for_ever(child, tmp_path):
    found = child("open('started', 'a').write('x'); tell('end', status=2); sys.exit(2)")
    assert (tmp_path / "started").read_text() == "x"
    assert found.ended_early
    assert found.outcomes == {}
    found = child(f"open('again', 'a').write('x'); passed({A!r}); tell('end', status=2); sys.exit(2)")
    assert (tmp_path / "again").read_text() == "xx"
    assert list(found.outcomes) == [A]


def test_a_child_that_pytest_refuses_to_run_is_a_problem_though_it_came_to_its_end(child):
    found = child("print('ERROR: no such option'); tell('end', status=4); sys.exit(4)")
    assert found.problem == "it ended with status 4: a word about it / ERROR: no such option"


def test_a_child_may_die_once_its_pytest_is_done(child):
    found = child(f"passed({A!r}); passed({B!r}); tell('end', status=0); os.abort()")
    assert found.problem is None
    assert not found.ended_early


def test_tests_that_are_not_found_are_named(child):
    found = child(f"passed({A!r}); tell('end', status=0)")
    assert found.problem == f"not found: {B}: a word about it"
    assert not found.ended_early


def test_a_silent_child_is_ended(child):
    found = child(f"tell('start', nodeid={A!r}); time.sleep(60)", timeout_s=0.5)
    assert found.problem == f"ended after 0.5 s without a sign of life while running {A}: a word about it"
    assert found.status is None


def test_a_child_that_reports_now_and_then_may_take_long(tmp_path, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(session.time, "monotonic", lambda: next(clock))
    file = tmp_path / "lines"

    class Slow:
        said = 0

        def poll(self):
            return 0 if self.said == 9 else None

        def wait(self, timeout):
            self.said += 1
            with file.open("a") as lines:
                print(json.dumps({"kind": "start", "nodeid": A}), file=lines)

    slow = Slow()
    assert session._follow(slow, Heard(file, ChildRun()), 5.0, 10.0, None, 1)
    assert slow.said == 9
    assert next(clock) > 15


def test_an_unreadable_line_is_a_problem(child):
    found = child(f"passed({A!r}); print('{{', file=lines, flush=True); passed({B!r}); tell('end', status=0)")
    assert found.problem.startswith("it sent a line that cannot be read: b'{': ")
    assert found.results == {A: FOUND, B: FOUND}


def test_a_result_of_another_shape_is_a_problem_that_names_the_field(child):
    found = child("FOUND['simulated'] = 'maybe'; passed(spec['nodeids'][0]); tell('end', status=0)")
    assert "at `$.simulated`" in found.problem


def test_a_torn_line_is_not_read_until_it_is_whole(tmp_path):
    file = tmp_path / "lines"
    heard = Heard(file, ChildRun())
    assert not heard.listen()
    told = {"kind": "test", "nodeid": A, "outcome": "passed", "text": "", "result": FOUND.to_json()}
    line = json.dumps(told).encode()
    file.write_bytes(line[:1000])
    assert not heard.listen()
    assert heard.damage is None
    file.write_bytes(line + b"\n")
    assert heard.listen()
    assert heard.ran.results == {A: Result.from_json(FOUND.to_json())}


def gone(pid):
    """Whether a process ends within seconds."""
    give_up_s = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < give_up_s:
        time.sleep(0.02)
    return not is_alive(pid)


LEAVE_ONE_BEHIND = """
one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("pid", "w").write(str(one.pid))
"""


@pytest.mark.parametrize("end", ["os._exit(3)", "tell('end', status=0)", "time.sleep(60)"])
def test_processes_that_a_child_started_end_with_it(child, tmp_path, end):
    begin = f"passed({A!r}); tell('start', nodeid={B!r})"
    child(f"{LEAVE_ONE_BEHIND}\n{begin}\n{end}", timeout_s=3.0)  # a busy host starts late
    assert gone(int((tmp_path / "pid").read_text()))


LOOKS_LIKE_A_ZOMBIE = """
import ctypes, os, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(60,)).start()
    open("made", "w").write(str(os.getpid()))
    os.rename("made", "pid")
    ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_alone_has_ended_is_killed_though_it_looks_like_a_zombie(tmp_path):
    command = [sys.executable, "-c", LOOKS_LIKE_A_ZOMBIE]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as leader:
        leader.wait()
        give_up_s = time.monotonic() + 10
        while not (tmp_path / "pid").exists() and time.monotonic() < give_up_s:
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        while is_alive(pid) and time.monotonic() < give_up_s:
            time.sleep(0.02)
        threads = Path(f"/proc/{pid}/task")
        assert len(list(threads.iterdir())) == 2
        session.end_group(leader)
        while threads.exists() and len(list(threads.iterdir())) == 2 and time.monotonic() < give_up_s:
            time.sleep(0.02)
        assert not threads.exists() or len(list(threads.iterdir())) == 1


def test_a_child_that_ignores_sigterm_is_killed(child, monkeypatch):
    monkeypatch.setattr(session, "TO_END_S", 0.3)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('start', nodeid=''); time.sleep(60)"
    assert child(deaf, timeout_s=0.5).status is None


def test_an_interrupt_ends_the_child_and_leaves_no_file(child, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    note = "open('pid', 'w').write(f'{os.getpid()} {sys.argv[1]}')"
    with pytest.raises(KeyboardInterrupt):
        child(f"{note}; tell('start', nodeid=''); time.sleep(60)", progress=interrupt)
    pid, _, spec = (tmp_path / "pid").read_text().partition(" ")
    assert gone(int(pid))
    assert not Path(spec).parent.exists()


def test_a_child_ends_with_its_parent_however_that_dies(tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux's kernel ends a child with its parent")
    script = f"""
import sys
from pathlib import Path
from pytest_gpukern.processes import child_sessions as session
from pytest_gpukern.processes.sessions import ChildRequest, ChildSessions
session.BOOTSTRAP = '''
import json, os, sys, time
spec = json.load(open(sys.argv[1]))
sys.path.insert(0, spec["package"])
from pytest_gpukern.processes.child_main import _end_with
_end_with(spec["parent"])
open("pid", "w").write(str(os.getpid()))
time.sleep(60)
'''
ChildSessions((), (), {str(tmp_path)!r}, ()).run(ChildRequest(("a",)))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE}
    ) as parent:
        file = tmp_path / "pid"
        give_up_s = time.monotonic() + 30
        while not (file.exists() and file.read_text()) and time.monotonic() < give_up_s:
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
    assert gone(int(file.read_text()))


SPEAK = (
    "json.dump([spec, os.getcwd(), dict(os.environ), sys.stdin.read()], open('seen', 'w')); "
    "tell('end', status=0)"
)


def test_a_child_in_another_tree_gets_that_trees_paths(child, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "sub").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{here}/lib{os.pathsep}/elsewhere")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    sessions = ChildSessions(
        (f"--rootdir={here}", f"-c{here}/a.ini", f"--near={here}by", f"--list=x:{here}/y"),
        (f"{here}/tests", "tests"),
        str(here / "sub"),
        (f"{here}/src", "/usr/lib"),
    )
    child(SPEAK, sessions=sessions, moved={str(here): str(there)}, environ={"EXTRA": "1"})
    spec, folder, environ, said = json.loads((there / "sub" / "seen").read_text())
    assert folder == str(there / "sub")
    assert spec["path"] == [f"{there}/src", "/usr/lib"]
    assert spec["package"] == str(FOLDER)
    assert spec["arguments"][:4] == [
        f"--rootdir={there}",
        f"-c{there}/a.ini",
        f"--near={here}by",
        f"--list=x:{there}/y",
    ]
    assert spec["arguments"][-2:] == [f"{there}/tests", "tests"]
    assert environ["PYTHONPATH"] == f"{there}/lib{os.pathsep}/elsewhere"
    assert environ["EXTRA"] == "1"
    assert "PYTEST_ADDOPTS" not in environ
    assert said == "", "nobody types for a child"


def test_a_child_keeps_its_temporary_files_and_cache_to_itself(child, tmp_path):
    child(SPEAK)
    spec = json.loads((tmp_path / "seen").read_text())[0]
    folder = str(Path(spec["lines"]).parent)
    assert f"--basetemp={folder}/basetemp" in spec["arguments"]
    assert f"-ocache_dir={folder}/cache" in spec["arguments"]
    without = ChildSessions((), (), str(tmp_path), (), ("cacheprovider",))
    child(SPEAK, sessions=without)
    arguments = json.loads((tmp_path / "seen").read_text())[0]["arguments"]
    assert not [argument for argument in arguments if "cache_dir" in argument]


@pytest.fixture
def ahead(tmp_path, monkeypatch):
    """Starts a real child ahead of its turn, in `tmp_path`, with these imports; ends it after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "test_a.py").write_text("def test_b(): open('ran', 'w')")
    folder = tmp_path / "run"
    folder.mkdir()
    children = ChildSessions(("-pno:benchmark",), ("test_a.py",), str(tmp_path), tuple(sys.path))
    started = []

    def start(*imports, **modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        started.append(children.start_ahead(HostTurns(folder), folder, moved={}, environ={"MINE": "1"}))
        for name in imports:
            started[-1].imports(name)
        return children, started[-1]

    yield start
    for each in started:
        each.end()


def appears(file):
    give_up_s = time.monotonic() + 30
    while not file.exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return file.exists()


def test_a_child_imports_before_its_turn_and_collects_in_it(ahead, tmp_path):
    children, child = ahead("first", "none_such", "second", first="", second="open('imported', 'w')")
    assert appears(tmp_path / "imported")
    assert child.process.poll() is None
    (tmp_path / "test_a.py").write_text(
        "import os, sys\ndef test_b(): assert os.environ['MINE'] and 'second' in sys.modules\n"
        "def test_c(): assert os.read(0, 1) == b''"
    )
    found = children.run(ChildRequest(("test_a.py::test_b", "test_a.py::test_c")), None, child)
    assert found.outcomes == {"test_a.py::test_b": ("passed", ""), "test_a.py::test_c": ("passed", "")}
    assert not child.place.exists()


def test_a_child_without_a_turn_ends_and_runs_nothing(ahead, tmp_path):
    _, child = ahead("first", first="open('imported', 'w')")
    assert appears(tmp_path / "imported")
    child.process.stdin.close()
    assert child.process.wait(30) == 1
    assert child.said == "the run had no turn for this session\n"
    assert not (tmp_path / "ran").exists()


def test_a_child_imports_nothing_while_something_is_timed_on_the_host(ahead, tmp_path):
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    ahead("first", "second", first=wait, second="import os; open('imported', 'w')")
    timed = []

    def time_something():
        with HostTurns(tmp_path / "run").alone():
            time.sleep(0.3)
            timed.append((tmp_path / "imported").exists())

    timing = threading.Thread(target=time_something)
    timing.start()
    while not (tmp_path / "run/host-gate").exists() or lock_state(tmp_path / "run/host-gate") == "free":
        time.sleep(0.001)
    time.sleep(0.1)
    assert timed == [], "it is busy from its start"
    (tmp_path / "go").touch()
    timing.join()
    assert timed == [False]
    assert appears(tmp_path / "imported")


MAKES_A_CONTEXT = "from pytest_gpukern.gpu.libcuda import LibCuda; LibCuda.has_context = lambda self: True"


def test_a_child_that_makes_a_context_before_its_turn_ends(ahead):
    children, child = ahead("first", first=MAKES_A_CONTEXT)
    assert child.process.wait(30) == 1
    assert child.said == "first makes a CUDA context when it is imported\n"
    child.imports("second")
    found = children.run(ChildRequest(("test_a.py::test_b",)), None, child)
    assert found.outcomes == {"test_a.py::test_b": ("passed", "")}, "in another process"


def test_a_child_whose_turn_has_come_may_make_a_context(ahead, tmp_path):
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    children, child = ahead("first", "second", first=wait + MAKES_A_CONTEXT, second="open('imported', 'w')")
    (tmp_path / "test_a.py").write_text("import sys\ndef test_b(): assert 'first' in sys.modules")
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    found = children.run(ChildRequest(("test_a.py::test_b",)), None, child)
    assert found.outcomes == {"test_a.py::test_b": ("passed", "")}
    assert not (tmp_path / "imported").exists(), "it is left to the test files"


def test_child_sessions_travel_to_a_worker_as_plain_json():
    children = ChildSessions(("-x", "--y=1"), ("tests",), "/folder", ("/a", "/b"), ("tmpdir",))
    assert ChildSessions.from_json(json.loads(json.dumps(children.to_json()))) == children


def test_only_the_files_of_wanted_tests_are_collected_where_they_can_be_told(tmp_path):
    (tmp_path / "test_a.py").touch()
    wanted = ["test_a.py::test_b[x::y]", "test_a.py::test_c"]
    assert files_to_collect(wanted, tmp_path) == [str(tmp_path / "test_a.py")]
    assert files_to_collect([*wanted, "gone.py::test_d"], tmp_path) is None


def test_a_real_child_finds_a_test_below_a_folder_with_a_bracket_in_its_name(tmp_path):
    (tmp_path / "sm[90]").mkdir()
    (tmp_path / "sm[90]" / "test_a.py").write_text("def test_b(): pass")
    children = ChildSessions(("-pno:benchmark",), (".",), str(tmp_path), tuple(sys.path))
    found = children.run(ChildRequest(("sm[90]/test_a.py::test_b",)))
    assert found.outcomes == {"sm[90]/test_a.py::test_b": ("passed", "")}


def test_a_real_child_searches_its_imports_for_garbage_no_more_but_what_tests_leave(tmp_path):
    (tmp_path / "test_a.py").write_text(
        "import gc\ndef test_b(): "
        "assert gc.isenabled() and gc.get_freeze_count() > 10000 > len(gc.get_objects())"
    )
    children = ChildSessions(("-pno:benchmark",), (".",), str(tmp_path), tuple(sys.path))
    found = children.run(ChildRequest(("test_a.py::test_b",)))
    assert found.outcomes == {"test_a.py::test_b": ("passed", "")}


@pytest.mark.parametrize("gone", [True, False])
def test_a_real_child_runs_what_it_finds_and_names_what_it_does_not(tmp_path, gone):
    (tmp_path / "test_a.py").write_text("def test_b(): pass\ndef test_c(): assert 0")
    wanted = ("test_a.py::test_b", *(["gone.py::test_d"] if gone else []))
    children = ChildSessions(("-pno:benchmark",), ("test_a.py", "gone.py"), str(tmp_path), tuple(sys.path))
    found = children.run(ChildRequest(wanted, watched_roots=(str(tmp_path),)))
    assert found.outcomes == {"test_a.py::test_b": ("passed", "")}
    assert found.others == ()
    assert [module for module, _, _ in found.modules] == ["test_a"]
    assert (found.problem is not None) == gone
    assert not gone or found.problem.startswith("not found: gone.py::test_d: ")


def test_a_real_child_that_collects_all_lists_our_unwanted_tests(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_b(): pass\ndef test_c(gpu_benchmark): pass")
    (tmp_path / "test_d.py").write_text("def test_e(): pass\ndef test_f(gpu_benchmark): pass")
    children = ChildSessions(("-pno:benchmark",), (".",), str(tmp_path), tuple(sys.path))
    found = children.run(ChildRequest(("test_a.py::test_c",), collects_all=True))
    assert list(found.outcomes) == ["test_a.py::test_c"]
    assert found.others == ("test_d.py::test_f",)


def test_a_test_that_a_real_child_cannot_collect_has_failed_and_the_others_run(tmp_path):
    """pytest refuses to run anything where it cannot collect the folder of a file that it is given."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text("import not_there_at_all")
    for file in ("tests/test_a.py", "test_b.py"):
        (tmp_path / file).write_text("def test_c(): pass")
    children = ChildSessions(("-pno:benchmark",), (".",), str(tmp_path), tuple(sys.path))
    found = children.run(ChildRequest(("tests/test_a.py::test_c", "test_b.py::test_c")))
    assert found.outcomes.pop("test_b.py::test_c") == ("passed", "")
    ((outcome, text),) = found.outcomes.values()
    assert outcome == "failed"
    assert re.match("tests could not be collected: .*'not_there_at_all'", text)
    assert (found.problem, found.ended_early) == (None, False)


def test_a_real_child_gives_no_warning_of_its_own_where_warnings_are_errors(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error")
    (tmp_path / "test_a.py").write_text("def test_b(): pass")
    children = ChildSessions(("-pno:benchmark",), (".",), str(tmp_path), tuple(sys.path))
    assert children.run(ChildRequest(("test_a.py::test_b",))).problem is None


def test_modules_below_a_watched_folder_are_listed_with_file_and_hash(tmp_path, monkeypatch):
    (tmp_path / "watched_one.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "watched_one", importlib.import_module("watched_one"))
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    told = [["watched_one", str(tmp_path / "watched_one.py"), empty]]
    assert loaded_below([str(tmp_path)]) == told
    assert loaded_below([str(tmp_path / "other")]) == []
    assert loaded_below([str(tmp_path / "other")], ["watched_one"]) == told, "wherever it lies"
