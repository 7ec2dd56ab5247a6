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

import numpy as np
import pytest
from made_up_results import measured, result
from msgspec import structs
from waiting import until

from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.package import FOLDER
from pytest_gpukern.processes import messages, process, sessions
from pytest_gpukern.processes.messages import (
    Begun,
    ChildRequest,
    Done,
    Paused,
    Reported,
    Resumed,
    RunTest,
    Uncollected,
)
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Ending
from pytest_gpukern.values.stored import plain

A, B = "test_it.py::test_a", "test_it.py::test_b"
FOUND = result("cupy.exp", measured())

SCRIPT = """
import faulthandler, json, os, signal, subprocess, sys, time
start = json.loads(sys.argv[1])
sys.path[:] = [start["package"], *start["path"]]
from multiprocessing.connection import Connection
from pytest_gpukern.processes.messages import *
connection = Connection(start["connection"])
hear = lambda: FROM_PARENT.decode(connection.recv_bytes())
tell = lambda message: connection.send_bytes(encoded(message))
def ends(outcome="passed", text="", when="call"):
    observed = {"observed": {"values": {"watts": {"a": 1.5}}}}
    carried = {"result": FOUND, "listed": {}} if when == "call" else observed
    tell(Reported({"nodeid": wanted.nodeid, "when": when, "gpukern": carried}, outcome, text))
def note(name):
    open("made", "w").write(str(os.getpid()))
    os.rename("made", name)
print("a word about it", flush=True)
begin, lost = hear(), None
faulthandler.register(signal.SIGUSR1, open(begin.stacks, "w"))
exec(STEPS["before"])
tell(Collected(begin.request.nodeids))
while isinstance(wanted := hear(), RunTest):
    tell(Begun())
    exec(STEPS[wanted.nodeid])
    tell(Done(lost))
tell(TornDown())
exec(STEPS["after"])
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Has a script play the processes of tests A and B: what each does, and what is done around them."""

    def steps(a="ends()", b="ends()", *, before="", after=""):
        told = {A: a, B: b, "before": before, "after": after}
        values = f"import json\nSTEPS, FOUND = json.loads({json.dumps([told, plain(FOUND)])!r})"
        monkeypatch.setattr(process, "BOOTSTRAP", values + SCRIPT)
        return ChildSessions(("--mine=1",), (), ("tests",), str(tmp_path), tuple(sys.path))

    return steps


def run(children, progress=None, started=None, **request):
    return children.run(ChildRequest((A, B), **request), progress, started)


def begun(children, hear, timeout_s=None):
    """Starts a process and runs test A in it."""
    child = children.start(ChildRequest())
    child.begin(children.begin(child, ChildRequest((A, B))))
    assert child.collected(hear) == messages.Collected((A, B))
    return child, child.run(RunTest(A), hear, timeout_s=timeout_s, too_long="took too long")


def gone(file):
    """Whether the process whose id a file holds ends soon, with all its threads."""
    pid = int(file.read_text())
    return until(lambda: not is_alive(pid) and len([*Path("/proc").glob(f"{pid}/task/*")]) <= 1)


def test_what_a_child_finds_arrives_and_ends_without_a_problem(play):
    told = []
    children = play("assert sys.stdin.read() == ''; ends()", "ends(); ends('failed', 'torn', 'teardown')")
    found = run(children, lambda *counts: told.append(counts))
    observed = structs.replace(FOUND, observations={"watts": {"a": 1.5}})
    assert found.listed == {A: {}, B: {}}
    failed = Ending("failed", "torn", observed)
    assert found.endings == {A: Ending("passed", "", FOUND), B: failed}, "also where the teardown fails"
    assert (found.problem, found.during, found.ended_early, found.status) == (None, None, False, 0)
    assert told == [(1, 2), (2, 2)]


def test_a_command_may_stand_before_the_childs_and_its_status_counts(play, tmp_path):
    """The kernel ends the tool with this process, but not the child: it looks by itself."""
    prefix = ("sh", "-c", f'echo "$#" > {tmp_path}/before; "$@"; exit 86', "sh")
    found = run(play("assert start['under_tool']; ends()"), command_prefix=prefix)
    assert (tmp_path / "before").read_text() == "5\n"
    assert (found.problem, found.status) == (None, 86)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV while running {}: a word about it"),
        ("print(7); sys.exit(0)", "ended with status 0 while running {}: 7"),
        ("os.close(start['connection']); os._exit(3)", "ended with status 3 while running {}: "),
        ("os.write(start['connection'], b'\\0\\0\\1\\0half'); os._exit(3)", "ended with status 3 "),
        ("connection.send_bytes(b'\\xc1')", "sent a message that cannot be read (MessagePack data is "),
        ("tell(End())", "sent a message that cannot be read (Invalid value 'End'"),
    ],
)
def test_a_child_that_dies_names_its_end_its_test_and_its_last_words_and_keeps_what_it_had(
    play, monkeypatch, end, words
):
    monkeypatch.setattr(sessions, "TO_END_S", 0.1)
    found = run(play(b=end))
    assert found.problem.startswith(f"it {words.format(B)}")
    assert (found.during, found.ended_early) == (B, True)
    assert found.endings == {A: Ending("passed", "", FOUND)}


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.abort()", f"it ended by SIGABRT while running {A}: a word about it"),
        ("ends('failed', 'INCORRECT'); lost = 'launch failed'", "INCORRECT"),
    ],
)
def test_a_test_that_crashes_or_loses_the_context_fails_and_the_others_run_in_another_child(play, end, words):
    told = []
    found = run(play(end, "assert lost is None; ends()"), lambda *counts: told.append(counts))
    assert found.endings[A][:2] == ("failed", words)
    assert found.endings[B] == Ending("passed", "", FOUND)
    assert (found.problem, found.during, found.ended_early) == (None, None, False)
    assert told[-1] == (2, 2)


@pytest.mark.parametrize(
    ("before", "a", "starts"),
    [("sys.exit(4)", "", "x"), ("", "tell(Exit('no', 4, False)); sys.exit(4)", "xx")],
)
def test_a_child_that_ends_before_every_test_is_a_problem_and_is_not_retried_for_ever(
    play, tmp_path, before, a, starts
):
    found = run(play(a, a, before=f"open('n', 'a').write('x'); print('ERROR: no such option'); {before}"))
    assert (tmp_path / "n").read_text() == starts
    assert list(found.endings) == [A][: len(starts) - 1]
    assert found.ended_early
    assert before == "" or found.problem == "it ended with status 4: a word about it / ERROR: no such option"
    assert before or found.problem.startswith(f"it was ended by 'no' while running {B}: ")


@pytest.mark.parametrize(("after", "status"), [("os.abort()", -signal.SIGABRT), ("time.sleep(60)", None)])
def test_a_child_may_die_or_hang_once_its_pytest_is_done(play, monkeypatch, after, status):
    monkeypatch.setattr(sessions, "TO_END_S", 0.5 if status is None else 60.0)
    found = run(play(after=after))
    assert (found.problem, found.ended_early, found.status) == (None, False, status)


def test_a_process_that_ends_before_its_turn_is_replaced(play):
    children = play()
    started = children.start(ChildRequest())
    os.kill(started.pid, signal.SIGKILL)
    started.status(20.0)
    assert list(run(children, None, started).endings) == [A, B]
    assert not started.place.exists()


@pytest.mark.parametrize(
    ("step", "time_passes_at", "hangs"),
    [
        ("note('on'); time.sleep(60)", Begun, True),
        # this process may have been suspended, like all others on the host
        ("tell(Done()); note('on'); time.sleep(60)", Begun, False),
        ("note('on'); tell(Paused()); tell(Resumed())", Paused, False),
        ("note('on'); tell(Paused()); tell(Paused()); tell(Resumed()); tell(Resumed())", Resumed, False),
        ("note('on'); tell(Paused()); tell(Resumed()); time.sleep(60)", Resumed, True),
    ],
)
def test_a_hang_is_ended_with_its_stacks_and_waiting_does_not_count(
    play, monkeypatch, tmp_path, step, time_passes_at, hangs
):
    now_s = [0.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=time.sleep))

    def hear(message):
        if isinstance(message, time_passes_at) and now_s == [0.0]:
            assert until((tmp_path / "on").exists)
            now_s[0] = 100.0

    child, ended = begun(play(step), hear, 10.0)
    if hangs:
        assert ended.why == "took too long"
        assert 'File "<string>", line' in ended.shown
        assert child.status(0.0) == -signal.SIGKILL
    else:
        assert ended == Done()
    child.kill()


LEAVES_ONE_BEHIND = """
import ctypes, threading
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(60,)).start()
    note("pid")
    if {looks_like_a_zombie}:  # its main thread alone has ended
        ctypes.CDLL(None).pthread_exit(None)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("zombie", "end"),
    [(False, "os._exit(3)"), (False, "ends()"), (False, "time.sleep(60)"), (True, "os._exit(3)")],
)
def test_processes_that_a_child_started_end_with_it_though_they_ignore_sigterm(
    play, tmp_path, monkeypatch, zombie, end
):
    monkeypatch.setattr(process, "TO_END_S", 0.2)

    def hear(message):
        assert until((tmp_path / "pid").exists)
        assert not zombie or until(lambda: not is_alive(int((tmp_path / "pid").read_text())))

    leaves = LEAVES_ONE_BEHIND.format(looks_like_a_zombie=zombie)
    child, _ = begun(play(leaves + end), hear, 0.0 if end.startswith("time") else None)
    assert end != "ends()" or child.end(hear) == messages.TornDown()
    child.kill()
    assert gone(tmp_path / "pid")


def test_an_interrupt_ends_the_child_and_leaves_no_file(play, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(play("note('pid'); os.symlink(begin.terminal, 'output')"), interrupt)
    assert gone(tmp_path / "pid")
    assert not (tmp_path / "output").readlink().parent.exists()


PARENT = """
import os, sys, time
from pytest_gpukern.processes.process import Process
one = Process(path=[".", *sys.path], folder=".", environ=os.environ)
one.imports("stuck")
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's kernel alone ends a child so")
def test_a_child_ends_with_its_parent_however_that_dies(tmp_path):
    stuck = (
        "import os, time; open('made', 'w').write(str(os.getpid())); os.rename('made', 'pid'); time.sleep(60)"
    )
    (tmp_path / "stuck.py").write_text(stuck)
    environ = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=environ, cwd=tmp_path) as parent:
        until((tmp_path / "pid").exists)
        parent.kill()
    assert gone(tmp_path / "pid")


def test_a_child_in_another_tree_gets_that_trees_paths_and_a_place_of_its_own(monkeypatch):
    monkeypatch.setattr(sessions, "Process", lambda **given: SimpleNamespace(place=Path("/p"), **given))
    own = "PYTEST_ADDOPTS PYTEST_CURRENT_TEST PYTEST_XDIST_WORKER COV_CORE_SOURCE COVERAGE_PROCESS_START"
    own = dict.fromkeys([*own.split(), "GIT_DIR", "GIT_INDEX_FILE", "MINE"], "x")
    kept = {"PYTEST_PLUGINS": "mine", "PYTHONPATH": f"/here/lib{os.pathsep}/else"}
    monkeypatch.setattr(os, "environ", {**own, **kept})
    options = ("--rootdir=/here", "-c/here/a.ini", "--near=/hereby", "--list=x:/here/y")
    path = ("/here/src", "/usr/lib")
    children = ChildSessions(options, ("-v",), ("/here/tests", "tests"), "/here/sub", path, card="GPU-A")
    request = ChildRequest((A,), {"/here": "/there"}, {"EXTRA": "1", "MINE": None})
    started = children.start(request)
    assert (started.folder, started.path) == ("/there/sub", ["/there/src", "/usr/lib"])
    sees = {"CUDA_VISIBLE_DEVICES": "GPU-A", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    there = f"/there/lib{os.pathsep}/else"
    assert started.environ == {**kept, "PYTHONPATH": there, **sees, "EXTRA": "1"}
    begin = children.begin(started, request)
    moved = ("--rootdir=/there", "-c/there/a.ini", "--near=/hereby", "--list=x:/there/y")
    own = ("--gpukern-device=GPU-A", "-ocache_dir=/p/cache", "--no-summary", "--basetemp=/p/basetemp")
    assert begin.arguments == (*moved, *own, "/there/tests", "tests")
    assert (begin.path, begin.children) == (("/there/src", "/usr/lib"), None)
    measuring = children.begin(started, ChildRequest(), judges=True, basetemp=Path("/b"))
    assert {"-v", "--basetemp=/b", "/here/tests"} <= {*measuring.arguments}
    assert ChildSessions.from_json(json.loads(json.dumps(measuring.children))) == children
    blocked = ChildSessions((), (), ("tests",), ".", (), ("cacheprovider", "terminal", "tmpdir"))
    assert blocked.begin(started, ChildRequest()).arguments == ("tests",)


def test_tests_of_what_could_not_be_collected_say_so():
    ran, why = ChildRun(), "could not be collected: E  no module"
    for node in ("t/sub", "test_a.py"):
        ran.hear(Uncollected(node, "E  no module"))
    tests = ("t/sub/test_it.py::test_a", "test_a.py::test_a", "t/subtle/test_a.py::test_a")
    assert [*map(ran.why_uncollected, tests)] == [f"t/sub {why}", f"test_a.py {why}", None]
    assert ran.what_is_missing([A], "") == f"t/sub {why}"
    ran.hear(Uncollected(".", "E"))
    assert ran.why_uncollected(A) == "the root folder could not be collected: E"
    assert ChildRun().what_is_missing("edcba", "x") == "not found: a, b, c and 2 more: x"
    assert ChildRun({A: Ending("passed")}, uncollected={"c": ""}).what_is_missing([A, B], "x\n") == (
        f"not found: {B}: x"
    )


def test_what_messagepack_does_not_have_arrives_as_text_or_as_the_plain_kind_that_it_is():
    told = {"big": 2**70, "most": 2**64 - 1, "half": "a\ud800", "\udc00": [np.float64(0.5), np.int64(3)]}
    report = Reported({**told, "odd": (Path("odd"), None)}, "passed", "")
    arrived = {"big": str(2**70), "most": 2**64 - 1, "half": "a\\ud800", "\\udc00": [0.5, "3"]}
    decoded = messages.FROM_CHILD.decode(messages.encoded(report))
    assert decoded.data == {**arrived, "odd": ["odd", None]}
