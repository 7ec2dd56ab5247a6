"""Runs in a child session: a pytest for named tests, which reports to its parent as it goes.

The parent is `child_sessions.py`. It starts Python with `BOOTSTRAP` and the path of a spec, a JSON object:

- `main`: the module whose `main` is called, this one or `run.isolated_child`;
- `path`: the parent's `sys.path`, so that both import the same;
- `package`: the folder that holds this package, which need not be installed;
- `parent`: the parent's process id, with which this process ends; null if a tool stands between the two;
- `arguments`: pytest's;
- `nodeids`: the wanted tests;
- `rootdir`: pytest's, in the process that reports;
- `watched_roots`, `watched_names`: folders, and top-level names, whose loaded modules are listed at the end;
- `collects_all`: whether to collect all that the command line names, and to list the unwanted tests;
- `checked`: tests that an earlier session of the same tree has checked in full;
- `datasets`: the folder in which sessions of that tree keep inputs and references for each other, or null;
- `lines`: the file to write to, a JSON object a line, flushed at once: what was measured before a crash is
  kept. Their `kind` is `uncollected` (a file that could not be collected, and why), `others`, `start` (a test
  begins), `test` (its outcome), `listed` (how pytest-benchmark lists it), `observed` (what it left on the
  device), `modules` or `end` (pytest is done).

A child that is started before its turn gets the first four of these, and `run_folder` and `busy`, of its
turns on the host. It reads lines from its standard input: `import`, and the name of a module; then `run`, and
the path of the whole spec.
"""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import importlib
import os
import select
import sys
from collections.abc import Container, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

import pytest

from pytest_gpukern.values.untrusted_json import decoded, own_json

BOOTSTRAP = (
    "import importlib, json, sys; spec = json.load(open(sys.argv[1], encoding='utf-8')); "
    "sys.path[:] = [spec['package'], *spec['path']]; "
    "sys.exit(importlib.import_module(spec['main']).main(spec))"
)
"""Code for Python to run, followed by the spec's path. `-m` would prefer a package of this name in the
working folder, but we measure the tests of another revision with this one's code."""

NAME = "gpukern-child"
"""Name of a plugin that marks a child session."""

CHECKED = pytest.StashKey[frozenset[str]]()
"""Tests that an earlier session of the same tree has checked in full."""
DATASETS: pytest.StashKey[Path] = pytest.StashKey()
"""Folder in which sessions of the same tree keep inputs and references for each other."""
ROOTDIR: pytest.StashKey[Path] = pytest.StashKey()
"""Pytest's rootdir in the process that reports."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_SIGKILL = 9


def main(spec: dict[str, Any]) -> int:
    """Runs the tests of a spec, and ends with pytest's exit status, or returns it under a tool."""
    become_child(spec)
    collects_first = CollectsFirst()
    if "busy" in spec:
        spec = wait_for_turn(spec)
    with open(spec["lines"], "a", encoding="utf-8") as lines:  # noqa: PTH123 - stays open while tests run
        status = int(pytest.main(list(spec["arguments"]), plugins=[ChildPlugin(spec, lines), collects_first]))
    if spec["parent"] is not None:  # a tool may look at how a process ends
        end_at_once(status)
    return status


def end_at_once(status: int) -> NoReturn:
    """Ends this process after its exit handlers, without taking apart all modules: that takes half a second.

    Threads that are left do not keep it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for_turn(spec: dict[str, Any]) -> dict[str, Any]:
    """Imports libraries while another session measures, and returns the whole spec when its turn begins.

    We import known libraries only. Conftests and test files are collected in the turn: they may run anything
    when they are imported, and collecting opens the device. While another process times something on the
    host, nothing is imported: this process was started `busy`, and takes turns from then on.

    This process ends itself if its parent has no turn for it, or if a library has made a CUDA context.
    """
    from pytest_gpukern.gpu.libcuda import LibCuda  # runs that ask for nothing load this file, too
    from pytest_gpukern.gpu.lock import HostTurns

    turns, waits = HostTurns(Path(spec["run_folder"])), select.poll()
    waits.register(0, select.POLLIN)
    if spec["busy"] is not None:
        os.close(spec["busy"])
    culprit = None
    with open(0, "rb", buffering=0, closefd=False) as lines:  # so that `waits` sees each line
        while culprit is None or waits.poll(0):
            what, _, name = lines.readline().decode().rstrip("\n").partition(" ")
            if what == "run":
                break
            if what != "import":
                sys.exit("the run had no turn for this session")
            if culprit is None:
                with turns.busy(), suppress(Exception):  # which the test files will meet
                    importlib.import_module(name)
                culprit = name if LibCuda().has_context() else None
        else:
            sys.exit(f"{culprit} makes a CUDA context when it is imported")
    with open(os.devnull) as nothing:  # noqa: PTH123 - nobody types for a child
        os.dup2(nothing.fileno(), 0)
    whole: dict[str, Any] = decoded(Path(name).read_bytes())
    sys.path[:] = whole["path"]
    return whole


class CollectsFirst:
    """Delays Python's garbage collection until the tests are collected, and leaves out what there is by then.

    A session keeps what it imports. On an H200's host, searching it nine times over as it grew took 1.4 to
    1.7 s of the nine that a session of these suites took to start. Later pytest has everything searched five
    times when it ends, and we do around each test.
    """

    def __init__(self) -> None:
        self._looked = gc.isenabled()
        gc.disable()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Restores garbage collection when collecting ends, however it ends."""
        try:
            return (yield)
        finally:
            gc.freeze()
            if self._looked:
                gc.enable()


def become_child(spec: dict[str, Any]) -> None:
    """Makes this process end with its parent, and import what that would."""
    if spec["parent"] is not None:
        _end_with(spec["parent"])
    sys.path[:] = spec["path"]
    package = sys.modules["pytest_gpukern"]
    # Else pytest warns that it cannot rewrite this plugin any more; some runs make that an error.
    package.__doc__ = f"{package.__doc__} PYTEST_DONT_REWRITE"


class ChildPlugin:
    """Keeps the wanted tests only, and reports each as it ends; the plugin of a child session.

    Args:
        spec: see above.
        lines: the open file of lines.
    """

    def __init__(self, spec: dict[str, Any], lines: TextIO) -> None:
        self._spec = spec
        self._lines = lines
        self._wanted = frozenset(spec["nodeids"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, object, object]:
        """Goes on without a conftest that cannot be imported: pytest then collects nothing below its folder.

        It is reported here too, since options of the run that it declares are unknown now.
        """
        try:
            return (yield)
        except Exception as error:
            conftest = getattr(error, "path", None)
            if not isinstance(conftest, Path):
                raise
            folder = os.path.relpath(conftest.parent, early_config.rootpath)
            self._tell("uncollected", nodeid=folder, text=str(error))
            return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Notes what earlier sessions did, and collects the files of the wanted tests only.

        The command line stays as the parent's: it decides which conftests are loaded at once, so which
        options there are, and where the ini file lies.
        """
        config.pluginmanager.register(object(), NAME)
        config.stash[ROOTDIR] = Path(self._spec["rootdir"])
        config.stash[CHECKED] = frozenset(self._spec["checked"])
        if self._spec["datasets"] is not None:
            config.stash[DATASETS] = Path(self._spec["datasets"])
        files = None if self._spec["collects_all"] else files_to_collect(self._wanted, config.rootpath)
        if files is not None:
            config.args, config.option.pyargs = files, False
        elif not config.option.pyargs:  # a missing path, or test of a file, would end this session
            config.args = [path for given in config.args if Path(path := given.partition("::")[0]).exists()]

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keeps the session, so that a lost context can stop it."""
        self._session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Reports why a file could not be collected: the output has that far above its end."""
        if report.failed:
            self._tell("uncollected", nodeid=report.nodeid, text=_text(report))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects what nobody asked for."""
        others = deselect_others(config, items, self._wanted)
        if others and self._spec["collects_all"]:
            self._tell("others", nodeids=[item.nodeid for item in others if measures(item)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Reports that a test begins, so that the parent knows which one ended a process."""
        self._tell("start", nodeid=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Reports the outcome of a test; later only what its teardown adds."""
        carried = getattr(report, "gpukern", None) or {}
        if carried.get("listed") is not None:
            self._tell("listed", nodeid=report.nodeid, listed=carried["listed"])
        if carried.get("lost"):  # the parent has the other tests run in a process with a context
            self._session.shouldstop = f"{report.nodeid} lost the CUDA context: {carried['lost']}"
        if carried.get("observed") is not None:
            self._tell("observed", nodeid=report.nodeid, observed=carried["observed"])
        if report.when != "call" and report.passed:
            return
        self._tell(
            "test",
            nodeid=report.nodeid,
            outcome="xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome,
            text=_text(report),
            result=carried.get("result"),
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Reports that pytest is done."""
        roots, names = self._spec["watched_roots"], self._spec["watched_names"]
        if roots:
            self._tell("modules", modules=loaded_below(roots, names))
        self._tell("end", status=int(exitstatus))

    def _tell(self, kind: str, **values: Any) -> None:
        self._lines.write(own_json.dumps({"kind": kind, **values}, allow_nan=False) + "\n")
        self._lines.flush()


def measures(item: pytest.Item) -> bool:
    """Returns whether this plugin measures in a test.

    It does through its own fixture, unless the test only rejects broken variants. It does through
    pytest-benchmark's in a run that asks for that.
    """
    names = getattr(item, "fixturenames", ())
    if "gpu_benchmark" in names:
        declared = getattr(getattr(item, "function", None), "_gpukern_problem", None)
        return declared is None or not declared[1]
    if "benchmark" not in names:
        return False
    ini = str(item.config.getini("gpukern_all")).strip().lower()
    takes_all = item.config.getoption("gpukern_all") or ini in ("1", "yes", "true", "on")
    return bool(takes_all) or item.get_closest_marker("gpu_benchmark") is not None


def deselect_others(
    config: pytest.Config, items: list[pytest.Item], wanted: Container[str]
) -> list[pytest.Item]:
    """Keeps the wanted tests only; returns the others."""
    others = [item for item in items if item.nodeid not in wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.nodeid in wanted]
    return others


def files_to_collect(wanted: Iterable[str], root: Path) -> list[str] | None:
    """Returns the wanted tests' files, or None to collect all that was given.

    The name of a test outside of the root folder does not tell its file, and pytest takes a bracket in an
    argument for the beginning of a test's parameters.
    """
    files = dict.fromkeys(root / nodeid.partition("::")[0] for nodeid in wanted)
    can_be_told = all(file.is_file() and "[" not in str(file) for file in files)
    return [str(file) for file in files] if can_be_told else None


def loaded_below(roots: Sequence[str], names: Sequence[str] = ()) -> list[list[str]]:
    """Returns name, file and SHA-256 of the loaded modules below `roots`, or below a name of `names`."""
    resolved = [Path(root).resolve() for root in roots]
    folders = functools.cache(os.path.realpath)  # a session has thousands of modules in few folders
    loaded = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        folder, base = os.path.split(os.path.realpath(file) if os.path.islink(file) else file)  # noqa: PTH114
        path = Path(folders(folder)) / base
        watched = name.partition(".")[0] in names or any(path.is_relative_to(root) for root in resolved)
        if watched and path.is_file():
            loaded.append([name, str(path), hashlib.sha256(path.read_bytes()).hexdigest()])
    return loaded


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Says why a test or a file did not pass; returns "" if it did."""
    if report.passed:
        return ""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)


def _end_with(parent: int) -> None:
    """Ends this process with its parent, if the kernel offers that (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # not in this C library; the parent still cleans up
        return
    if os.getppid() != parent:  # it ended before we asked
        sys.exit("the process that started this session has ended")
