"""Checks processes that run tests, from the other end; scripts play them, and no pytest starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from made_up_results import measured, result

from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes import process, sessions
from pytest_gpukern.processes.messages import (
    FROM_CHILD,
    Begun,
    Done,
    Paused,
    Reported,
    Resumed,
    Run,
    TornDown,
    Uncollected,
    encoded,
)
from pytest_gpukern.processes.process import Gone
from pytest_gpukern.processes.sessions import ChildRequest, ChildRun, ChildSessions

A, B = "test_it.py::test_a", "test_it.py::test_b"
FOUND = result("cupy.exp", measured())

SCRIPT = """
import faulthandler, json, os, signal, subprocess, sys, time
told = json.loads(sys.argv[1])
sys.path[:] = [told["package"], *told["path"]]
from multiprocessing.connection import Connection
from pytest_gpukern.processes.messages import *
connection = Connection(told["connection"])
def hear():
    return FROM_PARENT.decode(connection.recv_bytes())
def tell(message):
    connection.send_bytes(encoded(message))
def ends(outcome="passed", text=""):
    report = {"nodeid": wanted.nodeid, "when": "call", "gpukern": {"result": FOUND}}
    tell(Reported(report, outcome, text))
print("a word about it", flush=True)
begin, lost, missing = hear(), None, ()
faulthandler.register(signal.SIGUSR1, open(begin.stacks, "w"))
exec(STEPS["before"])
tell(Collected(missing))
while isinstance(wanted := hear(), Run):
    tell(Begun())
    exec(STEPS[wanted.nodeid])
    tell(Done(lost))
exec(STEPS["finally"])
tell(TornDown())
exec(STEPS["after"])
"""
LEAVES_ONE_BEHIND = """
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
one = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
one.stdout.readline()
open("made", "w").write(str(one.pid))
os.rename("made", "pid")
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Has a script play the processes of tests A and B: what each does, and what is done around them."""

    def steps(a="ends()", b="ends()", *, before="", tears_down="", after=""):
        told = {A: a, B: b, "before": before, "finally": tears_down, "after": after}
        values = f"import json\nSTEPS, FOUND = json.loads({json.dumps([told, FOUND.to_json()])!r})"
        monkeypatch.setattr(process, "BOOTSTRAP", values + SCRIPT)
        return ChildSessions(("--mine=1",), ("tests",), str(tmp_path), tuple(sys.path))

    return steps


def run(children, progress=None, started=None, **request):
    return children.run(ChildRequest((A, B), **request), progress, started)


def until(condition, within_s=20.0):
    give_up_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return condition()


def gone(file):
    """Whether the process whose id a file holds ends soon."""
    pid = int(file.read_text())
    return until(lambda: not is_alive(pid))


def test_what_a_child_finds_arrives_and_ends_without_a_problem(play):
    told = []
    found = run(play("assert sys.stdin.read() == ''; ends()"), lambda *counts: told.append(counts))
    assert found.results == {A: FOUND, B: FOUND}
    assert found.outcomes == {A: ("passed", ""), B: ("passed", "")}
    assert (found.problem, found.during, found.ended_early, found.status) == (None, None, False, 0)
    assert told == [(1, 2), (2, 2)]


def test_a_command_may_stand_before_the_childs_and_its_status_counts(play, tmp_path):
    """A tool between the two does not end with this process, so the child must not end with the tool."""
    prefix = ("sh", "-c", f'echo "$#" > {tmp_path}/before; "$@"; exit 86', "sh")
    found = run(play("assert told['parent'] is None; ends()"), command_prefix=prefix)
    assert (tmp_path / "before").read_text() == "5\n"
    assert (found.problem, found.status) == (None, 86)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it ended by SIGSEGV while running {}: a word about it"),
        ("print(7); sys.exit(0)", "it ended with status 0 while running {}: 7"),
        ("os.close(told['connection']); os._exit(3)", "it ended with status 3 while running {}: "),
        ("os.write(told['connection'], b'\\0\\0\\1\\0half'); os._exit(3)", "it ended with status 3 "),
        (
            "connection.send_bytes(b'\\xc1')",
            "it sent a message that cannot be read (MessagePack data is malf",
        ),
        ("tell(End())", "it sent a message that cannot be read (Invalid value 'End'"),
    ],
)
def test_a_child_that_dies_names_its_end_its_test_and_its_last_words_and_keeps_what_it_had(
    play, monkeypatch, end, words
):
    monkeypatch.setattr(sessions, "TO_END_S", 0.1)
    found = run(play(b=end))
    assert found.problem.startswith(words.format(B))
    assert (found.during, found.ended_early) == (B, True)
    assert found.results == {A: FOUND}


def test_tests_after_a_crash_run_in_another_child_and_the_crashing_test_fails(play):
    told = []
    found = run(play("os.abort()"), lambda *counts: told.append(counts))
    assert found.outcomes.pop(A)[1].startswith(f"it ended by SIGABRT while running {A}: ")
    assert found.outcomes == {B: ("passed", "")}
    assert found.results == {B: FOUND}
    assert (found.problem, found.during, found.ended_early) == (None, None, False)
    assert told == [(2, 2)]


def test_tests_after_one_that_loses_the_context_run_in_another_child(play, tmp_path):
    children = play("ends('failed', 'no'); lost = 'launch failed'", before="open('n', 'a').write('x')")
    found = run(children)
    assert (tmp_path / "n").read_text() == "xx"
    assert found.outcomes == {A: ("failed", "no"), B: ("passed", "")}
    assert found.problem is None


@pytest.mark.parametrize(
    ("how", "starts", "ended"),
    [
        ({"before": "print('ERROR: no such option'); sys.exit(4)"}, 1, ""),
        ({"a": "sys.exit(4)", "b": "sys.exit(4)"}, 2, A),
        ({"tears_down": "print('ERROR: no such option'); sys.exit(4)"}, 1, A + B),
    ],
)
def test_a_child_that_ends_before_every_test_is_a_problem_and_is_not_retried_for_ever(
    play, tmp_path, how, starts, ended
):
    found = run(play(**{**how, "before": "open('n', 'a').write('x');" + how.get("before", "")}))
    assert (tmp_path / "n").read_text() == "x" * starts
    assert found.ended_early == (ended != A + B)
    assert "".join(found.outcomes) == ended
    assert found.problem.startswith("it ended with status 4")
    assert ("ERROR: no such option" in found.problem) == (starts == 1)


def test_tests_that_are_not_found_are_named(play):
    found = run(play(before=f"missing = ({B!r},)"))
    assert found.problem == f"not found: {B}: a word about it"
    assert not found.ended_early
    assert list(found.outcomes) == [A]


@pytest.mark.parametrize(("after", "status"), [("os.abort()", -signal.SIGABRT), ("time.sleep(60)", None)])
def test_a_child_may_die_or_hang_once_its_pytest_is_done(play, monkeypatch, after, status):
    monkeypatch.setattr(process, "_TO_TEAR_DOWN_S", 1.0 if status is None else 60.0)
    monkeypatch.setattr(sessions, "TO_END_S", 0.1)
    found = run(play(after=after))
    assert (found.problem, found.ended_early, found.status) == (None, False, status)


def test_a_process_that_ends_before_its_turn_is_replaced(play):
    children = play()
    started = children.start({})
    os.kill(started.pid, signal.SIGKILL)
    started.status(20.0)
    assert list(run(children, None, started).outcomes) == [A, B]
    assert not started.place.exists()


@pytest.fixture
def begun(play):
    """Starts a process whose test A does this, and runs it; `hear` gets its messages."""
    started = []

    def begin(step, hear, timeout_s=None):
        children = play(step)
        started.append(children.start({}))
        ready = started[-1].begin(children.begin(started[-1], (A, B)), lambda message: None)
        assert not isinstance(ready, Gone)
        return started[-1], started[-1].run(Run(A), hear, timeout_s=timeout_s, too_long="took too long")

    yield begin
    for one in started:
        one.kill()


@pytest.mark.parametrize(
    ("step", "passes_at", "hangs"),
    [
        ("time.sleep(60)", Begun, True),
        ("tell(Paused()); tell(Resumed()); ends()", Paused, False),
        ("tell(Paused()); tell(Paused()); tell(Resumed()); tell(Resumed())", Resumed, False),
        ("tell(Paused()); tell(Resumed()); time.sleep(60)", Resumed, True),
    ],
)
def test_a_hang_is_ended_with_its_stacks_and_waiting_does_not_count(
    begun, monkeypatch, step, passes_at, hangs
):
    now_s, left = [0.0], [passes_at]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep)
    monkeypatch.setattr(process, "time", clock)

    def hear(message):
        if left and isinstance(message, left[0]):
            left.clear()
            now_s[0] += 100.0

    child, ended = begun(step, hear, 10.0)
    if not hangs:
        assert ended == Done()
        return
    assert ended.why == "took too long"
    assert 'File "<string>", line' in ended.shown
    assert child.status(0.0) == -signal.SIGKILL


def test_messages_that_have_come_count_though_the_time_is_over(begun, monkeypatch, tmp_path):
    """This process may have been suspended, with all others on the host."""
    now_s = [0.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep))

    def suspends(message):
        assert until((tmp_path / "done").exists)
        now_s[0] += 100.0

    assert begun("tell(Done()); open('done', 'w'); time.sleep(60)", suspends, 10.0)[1] == Done()


@pytest.mark.parametrize("end", ["os._exit(3)", "ends()", "time.sleep(60)"])
def test_processes_that_a_child_started_end_with_it_though_they_ignore_sigterm(
    begun, tmp_path, monkeypatch, end
):
    monkeypatch.setattr(process, "TO_END_S", 0.2)

    def hear(message):
        assert until((tmp_path / "pid").exists)

    child, _ = begun(LEAVES_ONE_BEHIND + end, hear, 0.0 if end.startswith("time") else None)
    if end == "ends()":
        assert child.end(hear) == TornDown()
    child.kill()
    assert gone(tmp_path / "pid")


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
        assert until((tmp_path / "pid").exists)
        assert gone(tmp_path / "pid")
        threads = Path("/proc", (tmp_path / "pid").read_text(), "task")
        assert len(list(threads.iterdir())) == 2
        process.end_group(leader)
        assert until(lambda: not threads.exists() or len(list(threads.iterdir())) == 1)


def test_an_interrupt_ends_the_child_and_leaves_no_file(play, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            play("open('pid', 'w').write(str(os.getpid())); print(begin.terminal, file=open('place', 'w'))"),
            interrupt,
        )
    assert gone(tmp_path / "pid")
    assert not Path((tmp_path / "place").read_text().strip()).parent.exists()


ENDS_WITH_ITS_PARENT = """
import os, time
from pytest_gpukern.processes import process
process.BOOTSTRAP = '''
import json, os, sys, time
told = json.loads(sys.argv[1])
sys.path.insert(0, told["package"])
from pytest_gpukern.session.child import _end_with
_end_with(told["parent"])
open("made", "w").write(str(os.getpid()))
os.rename("made", "pid")
time.sleep(60)
'''
one = process.Process(path=(), folder=".", environ=os.environ)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's kernel alone ends a child so")
def test_a_child_ends_with_its_parent_however_that_dies(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(FOLDER), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", ENDS_WITH_ITS_PARENT]
    with subprocess.Popen(command, env=environ, cwd=tmp_path) as parent:
        assert until((tmp_path / "pid").exists)
        parent.send_signal(signal.SIGKILL)
    assert gone(tmp_path / "pid")


def test_a_child_in_another_tree_gets_that_trees_paths(monkeypatch):
    monkeypatch.setattr(sessions, "Process", lambda **given: SimpleNamespace(place=Path("/p"), **given))
    monkeypatch.setattr(os, "environ", {"PYTHONPATH": f"/here/lib{os.pathsep}/else", "PYTEST_ADDOPTS": "-x"})
    children = ChildSessions(
        ("--rootdir=/here", "-c/here/a.ini", "--near=/hereby", "--list=x:/here/y"),
        ("/here/tests", "tests"),
        "/here/sub",
        ("/here/src", "/usr/lib"),
        card="GPU-A",
    )
    started = children.start({"EXTRA": "1", "GONE": None}, moved={"/here": "/there"})
    assert (started.folder, started.path) == ("/there/sub", ["/there/src", "/usr/lib"])
    sees = {"CUDA_VISIBLE_DEVICES": "GPU-A", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert started.environ == {"PYTHONPATH": f"/there/lib{os.pathsep}/else", **sees, "EXTRA": "1"}
    begin = children.begin(started, (A,), moved={"/here": "/there"})
    moved = ("--rootdir=/there", "-c/there/a.ini", "--near=/hereby", "--list=x:/there/y")
    own = ("--gpukern-device=GPU-A", "-ocache_dir=/p/cache", "--no-summary", "--basetemp=/p/basetemp")
    assert begin.arguments == (*moved, *own, "/there/tests", "tests")
    assert begin.path == ("/there/src", "/usr/lib")


def test_a_child_gets_no_option_of_a_plugin_that_the_run_blocks():
    blocked = ("cacheprovider", "terminal", "tmpdir")
    children = ChildSessions((), ("tests",), ".", (), blocked)
    assert children.begin(SimpleNamespace(place=Path("/p")), ()).arguments == ("tests",)
    one = ChildSessions((), (), ".", ()).begin(SimpleNamespace(place=Path("/p")), (), basetemp=Path("/b"))
    assert one.arguments[-1] == "--basetemp=/b"


def test_variables_of_a_pytest_a_worker_coverage_and_a_git_hook_stay_behind(monkeypatch):
    left = ["PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"]
    left += ["COV_CORE_SOURCE", "COVERAGE_PROCESS_START", "GIT_DIR", "GIT_INDEX_FILE"]
    kept = {"PYTEST_PLUGINS": "mine", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    monkeypatch.setattr(os, "environ", {**dict.fromkeys(left, "x"), **kept})
    assert sessions.environment({}) == kept


def test_child_sessions_travel_to_a_worker_as_plain_json():
    children = ChildSessions(("-x", "--y=1"), ("tests",), "/folder", ("/a", "/b"), ("tmpdir",), card="GPU-A")
    assert ChildSessions.from_json(json.loads(json.dumps(children.to_json()))) == children


def test_a_teardown_that_fails_leaves_what_was_measured():
    ran = ChildRun()
    for when, outcome, carried in (
        ("call", "passed", {"result": FOUND.to_json()}),
        ("teardown", "failed", {}),
    ):
        ran.hear(Reported({"nodeid": A, "when": when, "gpukern": carried}, outcome, when))
    assert ran.outcomes == {A: ("failed", "teardown")}
    assert ran.results == {A: FOUND}


def test_tests_of_what_could_not_be_collected_say_so():
    ran = ChildRun()
    for node in ("t/sub", "test_a.py"):
        ran.hear(Uncollected(node, "E  no module"))
    why = "could not be collected: E  no module"
    assert ran.why_uncollected("t/sub/test_it.py::test_a") == f"t/sub {why}"
    assert ran.why_uncollected("test_a.py::test_a") == f"test_a.py {why}"
    assert ran.why_uncollected("t/subtle/test_a.py::test_a") is None
    assert ran.what_is_missing([A], "") == f"t/sub {why}"
    ran.hear(Uncollected(".", "E"))
    assert ran.why_uncollected(A) == "the root folder could not be collected: E"


class Odd:
    def __str__(self):
        return "odd"


def test_what_messagepack_does_not_have_arrives_as_text_or_as_the_plain_kind_that_it_is():
    values = {"big": 2**70, "most": 2**64 - 1, "half": "a\ud800", "\udc00": [np.float64(0.5), np.int64(3)]}
    reported = Reported({**values, "odd": (Odd(), None)}, "passed", "")
    arrived = {"big": str(2**70), "most": 2**64 - 1, "half": "a\\ud800", "\\udc00": [0.5, "3"]}
    assert FROM_CHILD.decode(encoded(reported)).data == {**arrived, "odd": ["odd", None]}


def test_a_damaged_message_is_told_from_a_good_one():
    message = encoded(Reported({"nodeid": A, "when": "call"}, "passed", ""))
    for end in range(len(message)):
        with pytest.raises(msgspec.MsgspecError):
            FROM_CHILD.decode(message[:end])
