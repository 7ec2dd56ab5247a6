"""Leaves out the tests of which nothing that they load changed: `--gpukern-only-changed=RUN.json`.

A run of everything that ended green vouches for its tests (`voucher_of`). A later run leaves out those that
load nothing that differs from that run's commit, under the same conditions (`leave_out_unchanged`). Where it
is not sure, tests run: a wrong kernel that does not run would be green.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence, Set
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from posixpath import basename, dirname

import pytest

from pytest_gpukern.gpu.fingerprint import asked_of_git
from pytest_gpukern.package import FOLDER, __version__
from pytest_gpukern.report.run import Unchanged, Voucher
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.units import counted
from pytest_gpukern.run.loaded_files import Loads, Project
from pytest_gpukern.session.item import marker_of, may_use_gpu
from pytest_gpukern.session.stash import (
    BEGAN_WITH,
    CHILD,
    UNCHANGED,
    UNCHANGED_OF_A_WORKER,
    environment_of,
    settings_of,
)
from pytest_gpukern.values.options import SettingsError
from pytest_gpukern.values.result import Correctness, JsonDict, Result
from pytest_gpukern.values.stored import plain
from pytest_gpukern.values.untrusted_json import FileError
from pytest_gpukern.values.verdict_table import VerdictKind

MOST_DAYS = 14
"""Age from which a run vouches for nothing: what nobody compares, such as a card's wear, adds up."""
_DECIDED = (VerdictKind.SAME, VerdictKind.SAME_CODE, VerdictKind.FASTER, VerdictKind.NEW)
"""Verdicts on times that were judged, or that had no record."""
_OF_ALL = re.compile(
    r"(pyproject|Pipfile|uv|pdm|pixi)\.toml|setup\.(py|cfg)|\.?(pytest|tox)\.(ini|toml)|"
    r"\.git(attributes|modules)|(.*[-_.])?(requirements|constraints)([-_.].*)?\.(txt|in)|.*\.lock|"
    r"environment\.ya?ml|conda-.*\.ya?ml|conftest\.py"
)
"""Files that say what is installed and how tests run: where one changed, everything runs."""
_LINK = "120000"
"""What git calls a symbolic link."""
_VARIABLES = re.compile(
    r"(NUMBA|TRITON|CUDA|TORCH\w*|PYTORCH|CUPY|PYCUDA|NVIDIA|NVCC|CUBLAS|CUDNN|CUTLASS|NCCL|OMP|KMP|GOMP|MKL|"
    r"OPENBLAS|XLA|JAX|TF)_.*|PYTHON(PATH|OPTIMIZE|HASHSEED|WARNINGS|DEVMODE)|LD_(LIBRARY_PATH|PRELOAD)|"
    r"PYTEST_PLUGINS|CC|CXX|C\w*FLAGS|C\w*PATH|LIBRARY_PATH"
)
_OF_A_CARD = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
"""Which card of a model a runner hands out; the model is compared."""


def conditions(config: pytest.Config, project: Project) -> dict[str, str]:
    """Returns what has to be equal in two runs, so that the same files do the same."""
    environment, settings, top = environment_of(config), settings_of(config), str(config.rootpath)
    found, plugins = environment.gpu.fingerprint, config.pluginmanager.list_plugin_distinfo()
    began, nvcc = config.stash.get(BEGAN_WITH, dict(os.environ)), shutil.which("nvcc")
    variables = {
        f"variable {name}": _hash(value.replace(top, ".").encode(errors="replace"))
        for name, value in began.items()
        if _VARIABLES.fullmatch(name) and name not in _OF_A_CARD
    }
    return {
        "pytest-gpukern": f"{__version__} {_hash_of(FOLDER, '*.py')}",
        "Python": f"{platform.python_implementation()} {found.python_version}",
        "driver": f"{found.driver_version}",
        "card's model": environment.gpu.model_key(on_gpu=True) if environment.gpu.has_gpu else "none",
        "options": " ".join(environment.children.options),
        "threshold": f"{settings.threshold}",
        "folder of tests": project.path_of(config.rootpath),
        "plugins": " ".join(sorted({of.project_name for _, of in plugins})),
        "machine": " ".join((platform.machine(), *platform.libc_ver())),
        "optimization": f"{sys.flags.optimize} {sys.flags.dev_mode}",
        "ini file": _hash(config.inipath.read_bytes() if config.inipath is not None else b""),
        "timeout": f"{settings.timeout_s} s",
        "nvcc": _hash(Path(nvcc).read_bytes()) if nvcc else "",
        "records": _hash_of(settings.baseline_dir, "*.json"),
        **variables,
        # Of two on Python's path the first is in use.
        **{f"library {of.name}": _version(of) for of in reversed([*metadata.distributions()])},
    }


def _hash(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:12]


def _hash_of(folder: Path | None, pattern: str) -> str:
    files = sorted(folder.rglob(pattern)) if folder is not None else []
    return _hash(*(path.read_bytes() for path in files if path.is_file()))


def _version(of: metadata.Distribution) -> str:
    """Returns a distribution's version and a hash of what was installed; scripts name their environment."""
    lines = (of.read_text("RECORD") or "").splitlines()
    files = sorted(line for line in lines if "sha256=" in line and not line.startswith(".."))
    return f"{of.version} {_hash(*map(str.encode, files))}"


class Ran:
    """Takes from reports how the tests of a run ended, as far as a voucher needs it.

    Attributes:
        blind: why not all was seen that they opened, in words; empty if it was.
        opened: test → what was opened in it.
        before: what was opened before any was collected.
        between: what was opened outside of tests later, as by collecting them.
    """

    def __init__(self) -> None:
        self.blind = ""
        self.opened: dict[str, Sequence[str]] = {}
        self.before, self.between = set[str](), set[str]()
        self._attempts, self._passed = Counter[str](), set[str]()

    def take(self, report: pytest.TestReport, carried: JsonDict) -> None:
        """Notes what a phase of a test came to; `carried` is what our part of its report holds."""
        self._attempts[report.nodeid] += report.when == "setup"
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)
        elif not report.passed:
            self._passed.discard(report.nodeid)
        if "opened" in carried:
            self.opened[report.nodeid] = self.take_opened(carried)

    def take_opened(self, carried: JsonDict) -> Sequence[str]:
        """Notes what `OpenedFiles.carried` tells, and returns what was opened in the test itself."""
        opened: dict[str, list[str]] = carried["opened"]
        self.before.update(opened.get("before", ()))
        self.between.update(opened.get("between", ()))
        self.blind = self.blind or carried["blind"]
        return opened.get("test", ())

    @property
    def passed(self) -> set[str]:
        """Returns the tests that passed at their first attempt, without a mark that expects a failure."""
        return {test for test in self._passed if self._attempts[test] == 1}


def voucher_of(
    config: pytest.Config, ran: Ran, results: Sequence[Result], *, green: bool, whole: bool
) -> Voucher:
    """Returns for which tests a run vouches, or why for none."""
    settings, provenance = settings_of(config), environment_of(config).provenance
    project = Project.around(config.rootpath)
    elsewhere = sorted({of.provenance.state for of in results} - {provenance.state})
    refusals = {
        ran.blind: True,
        "it was not green": not green,
        "it compared with no record": settings.baseline == "off",
        "it left out tests": not whole,
        "git does not know its folder": project is None or provenance.commit is None,
        "files differed from its commit": provenance.dirty,
        f"its folder changed while it ran, from {', '.join(elsewhere)}": elsewhere,
    }
    refused = next((why for why, holds in refusals.items() if why and holds), "")
    if refused or project is None:
        return Voucher(refused)
    undecided = {
        result.nodeid
        for result in results
        if result.correctness is not Correctness.PASSED
        or not {time.key for time in result.measurements} <= result.verdicts.keys()
        or not all(verdict.kind in _DECIDED for verdict in result.verdicts.values())
    }
    passed, loads_of = ran.passed - undecided, functools.cache(project.loads)
    tests, shared, explained = dict[str, tuple[str, ...]](), set[str](), set[str]()
    for test, opened in ran.opened.items():
        static: Loads = loads_of(config.rootpath / test.partition("::")[0])
        others = {*opened} - static.files
        if test in passed and project.comparable >= {*opened, *static.files}:
            tests[test] = tuple(sorted(others))
            shared |= {of for of in others if not static.has(of)}
        else:  # it runs anyway; what git does not have would only have all others run, too
            shared |= others & project.tracked
        explained |= {of for of in static.files if of.endswith(".py") and not _has_hooks(project.top / of)}
    return Voucher(
        commit=provenance.commit or "",
        conditions=conditions(config, project),
        fail_on=tuple(sorted(settings.fail_on)),
        opened=tuple(sorted(ran.before | shared | (ran.between - explained))),
        tests=tests,
    )


def _has_hooks(path: Path) -> bool:
    """Returns whether a module is a conftest that may act on tests outside of its folder."""
    return path.name == "conftest.py" and path.is_file() and b"def pytest_" in path.read_bytes()


def leave_out_unchanged(config: pytest.Config, items: list[pytest.Item], path: Path) -> None:
    """Leaves out the tests for which a run's file vouches that nothing they load changed, and notes them."""
    if CHILD in config.stash:  # it is told which tests to run
        return
    mine = [item for item in items if may_use_gpu(item)]
    try:
        known = _Known(config, path)
        if not any(map(config.getoption, ("keyword", "markexpr", "deselect"))):
            known.refuse_gone({item.nodeid for item in items})
        reasons = {item.nodeid: known.why_run(item) for item in mine}
        vouches = known.words
    except _NothingVouchesError as error:
        reasons, vouches = dict.fromkeys((item.nodeid for item in mine), str(error)), ""
    left = [item for item in mine if not reasons[item.nodeid]]
    ran = Counter(why for why in reasons.values() if why)
    unchanged = Unchanged(vouches, tuple(item.nodeid for item in left), dict(ran.most_common()))
    config.stash[UNCHANGED] = unchanged
    if hasattr(config, "workeroutput"):
        config.workeroutput[UNCHANGED_OF_A_WORKER] = plain(unchanged)
    if left:
        config.hook.pytest_deselected(items=left)
        gone = {*unchanged.tests}
        items[:] = [item for item in items if item.nodeid not in gone]


class _NothingVouchesError(Exception):
    """Says why every test runs."""


class _Known:
    """Knows a run that vouches, and what changed since; raises _NothingVouchesError if everything runs."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        project = Project.around(config.rootpath)
        try:
            run = read_run(path)
        except FileError as error:
            raise _NothingVouchesError(str(error)) from error
        voucher = run.voucher or Voucher("it does not say what its tests load")
        age = datetime.now(UTC) - run.created
        if project is None:
            raise _NothingVouchesError("git does not know this folder")
        if refused := _why_not(voucher, age, config, project):
            raise _NothingVouchesError(f"{path.name} vouches for nothing: {refused}")
        self._project, self._root, self._voucher = project, config.rootpath, voucher
        self._static = functools.cache(project.loads)
        self._read_changes({project.path_of(of) for of in (path, *settings_of(config).reports)})
        days = f"{counted(age.days, 'day')} ago" if age.days else "today"
        self.words = f"{voucher.commit[:7]}, where they passed with these libraries, {days}"

    def _read_changes(self, written: Set[str]) -> None:
        """Notes the paths that differ from the run's commit, but for files that runs have written."""
        top, commit = self._project.top, self._voucher.commit
        if asked_of_git(["merge-base", "--is-ancestor", commit, "HEAD"], top) is None:
            why = f"its commit {commit[:7]} is no ancestor of HEAD, or not here"
            raise _NothingVouchesError(f"{why}; fetch it with `fetch-depth: 0`")
        since = ["-c", "core.fileMode=true", "diff", "--raw", "--no-renames", "-z", commit, "--"]
        listed = asked_of_git(since, top)
        others = asked_of_git(["ls-files", "--others", "--exclude-standard", "-z"], top)
        if listed is None or others is None:
            raise _NothingVouchesError("git does not say what changed")
        parts = listed.split("\0")[:-1]
        how = dict(zip(parts[1::2], parts[::2], strict=True))  # path → modes, hashes, a letter
        self._new = {*others.split("\0")} - {"", *written} | {of for of in how if how[of].endswith("A")}
        self._changed = how.keys() | self._new
        self._project.gone = frozenset(of for of in how if how[of].endswith("D"))
        for of in sorted(self._changed):
            if _OF_ALL.fullmatch(basename(of)) or _LINK in how.get(of, ""):
                raise _NothingVouchesError(f"{of} changed, which concerns every test")

    def refuse_gone(self, collected: Set[str]) -> None:
        """Has everything run if a test is gone from a file that changed: who looks for it sees what runs."""
        for test in self._voucher.tests.keys() - collected:
            if self._project.path_of(self._root / test.partition("::")[0]) in self._changed:
                raise _NothingVouchesError(f"{test} is gone")

    def why_run(self, item: pytest.Item) -> str:
        """Says why a test has to run; returns nothing if it need not."""
        own = self._voucher.tests.get(item.nodeid)
        if own is None:
            return "did not pass there, were not judged, or load what git cannot tell"
        if item.path != self._root / item.nodeid.partition("::")[0]:
            return "lie outside of the root folder"
        opened = {*own, *self._voucher.opened}
        try:
            loads = self._project.loads(item.path, marker_of(item).reads, opened)
        except SettingsError as error:
            return str(error)
        lost = sorted(opened - self._project.comparable - self._changed)
        if loads.unsure or lost:
            return loads.unsure or f"git did not have {lost[0]}"
        data = opened - self._static(item.path).files
        found = sorted(
            of for of in self._changed if loads.has(of) or (of in self._new and _may_win(of, data))
        )
        return f"load {found[0]}" if found else ""


def _may_win(new: str, data: Set[str]) -> bool:
    """Returns whether a new file lies where a test has found others like it, or is called as one."""
    return any(
        f"{dirname(new)}/".startswith(f"{dirname(of)}/") or basename(new) == basename(of)
        for of in data
        if new.endswith(".py") == of.endswith(".py")
    )


def _why_not(voucher: Voucher, age: timedelta, config: pytest.Config, project: Project) -> str:
    """Says why a run vouches for nothing in this one; returns nothing if it does."""
    if voucher.refused:
        return voucher.refused
    now = conditions(config, project)
    for name in sorted({*voucher.conditions, *now}):
        before, after = voucher.conditions.get(name), now.get(name)
        if before != after:
            return f"{name}: {before or 'none'} there, {after or 'none'} here"
    if missing := sorted(settings_of(config).fail_on - {*voucher.fail_on}):
        return f"--gpukern-fail-on={missing[0]} did not fail it"
    if age.days < 0:
        return "its clock was ahead"
    return f"it is {age.days} days old, and {MOST_DAYS} are too many" if age.days >= MOST_DAYS else ""
