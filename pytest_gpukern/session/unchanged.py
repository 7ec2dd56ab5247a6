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
from collections.abc import Iterator, Sequence, Set
from datetime import UTC, datetime
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
    r"environment\.ya?ml|conda-.*\.ya?ml"
)
"""Files that say what is installed and how tests run: where one changed, everything runs."""
_VARIABLES = re.compile(
    r"(NUMBA|TRITON|CUDA|TORCH\w*|PYTORCH|CUPY|PYCUDA|NVIDIA|NVCC|CUBLAS|CUDNN|CUTLASS|NCCL|OMP|KMP|GOMP|MKL|"
    r"OPENBLAS|XLA|JAX|TF)_.*|PYTHON(PATH|OPTIMIZE|HASHSEED|WARNINGS|DEVMODE)|LD_(LIBRARY_PATH|PRELOAD)|"
    r"PYTEST_PLUGINS|CC|CXX|C\w*FLAGS|C\w*PATH|LIBRARY_PATH"
)
_OF_A_CARD = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
"""Which card of a model a runner hands out; the model is compared."""


def conditions(config: pytest.Config) -> dict[str, str]:
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
        "pytest-gpukern": f"{__version__} {_own_content()}".strip(),
        "Python": f"{platform.python_implementation()} {found.python_version}",
        "driver": f"{found.driver_version}",
        "card's model": environment.gpu.model_key(on_gpu=True) if environment.gpu.has_gpu else "none",
        "options": " ".join(environment.children.options),
        "plugins": " ".join(sorted({of.project_name for _, of in plugins})),
        "machine": " ".join((platform.machine(), *platform.libc_ver())),
        "optimization": f"{sys.flags.optimize} {sys.flags.dev_mode}",
        "ini file": _hash(config.inipath.read_bytes() if config.inipath is not None else b""),
        "timeout": f"{settings.timeout_s} s",
        "nvcc": _hash(Path(nvcc).read_bytes()) if nvcc else "",
        "records": _hash(*_contents(settings.baseline_dir, "*.json")),
        **variables,
        # Of two on Python's path the first is in use.
        **{f"library {of.name}": _version(of) for of in reversed([*metadata.distributions()])},
    }


def _hash(*contents: bytes) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()[:12]


def _contents(folder: Path | None, pattern: str) -> Iterator[bytes]:
    yield from (
        (path.read_bytes() for path in sorted(folder.rglob(pattern)) if path.is_file()) if folder else ()
    )


def _own_content() -> str:
    """Returns a hash of this plugin's modules where it runs from a checkout, for which no version stands."""
    return "" if "-packages" in FOLDER.parts[-2] else _hash(*_contents(FOLDER, "*.py"))


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
        outside: what was opened between tests, as by collecting them.
        always: what was opened before any was collected.
    """

    def __init__(self) -> None:
        self.blind = ""
        self.opened: dict[str, Sequence[str]] = {}
        self.outside, self.always = set[str](), set[str]()
        self._attempts, self._passed = Counter[str](), set[str]()

    def take(self, report: pytest.TestReport, carried: JsonDict) -> None:
        """Notes what a phase of a test came to; `carried` is what our part of its report holds."""
        self._attempts[report.nodeid] += report.when == "setup"
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)
        elif not report.passed:
            self._passed.discard(report.nodeid)
        if "opened" in carried:
            self.opened[report.nodeid] = carried["opened"]
            self.take_opened(carried)

    def take_opened(self, carried: JsonDict) -> None:
        self.outside.update(carried["outside"])
        self.always.update(carried["always"])
        self.blind = self.blind or carried["blind"]

    @property
    def passed(self) -> set[str]:
        """Returns the tests that passed at their first attempt, without a mark that expects a failure."""
        return {test for test in self._passed if self._attempts[test] == 1}


def voucher_of(
    config: pytest.Config, ran: Ran, results: Sequence[Result], *, green: bool, whole: bool
) -> Voucher:
    """Returns for which tests a run vouches, or why for none."""
    environment, settings, passed = environment_of(config), settings_of(config), ran.passed
    project, provenance = Project.around(config.rootpath), environment.provenance
    refused = ran.blind or ("" if green else "it was not green")
    if not refused and settings.baseline == "off":
        refused = "it compared with no record"
    elif not refused and not whole:
        refused = "it left out tests"
    elif not refused and (project is None or provenance.commit is None):
        refused = "git does not know its folder"
    elif not refused and provenance.dirty:
        refused = "files differed from its commit"
    if refused or project is None:
        return Voucher(refused or "git does not know its folder")
    judged = {
        result.nodeid: result.correctness is Correctness.PASSED
        and {time.key for time in result.measurements} <= result.verdicts.keys()
        and all(verdict.kind in _DECIDED for verdict in result.verdicts.values())
        for result in results
    }
    others = sorted({of.provenance.state for of in results} - {provenance.state})
    if others:
        return Voucher(f"its folder changed while it ran, from {others[0]}")
    imported = functools.cache(lambda file: project.loads(config.rootpath / file).files)
    tests = {
        test: tuple(opened)
        for test, opened in ran.opened.items()
        if test in passed and judged.get(test, True)
        if not any(project.tracked.get(of, "?") for of in {*opened, *imported(test.partition("::")[0])})
    }
    # What others than these tests opened may serve them, too: not what git does not have, nor what the
    # imports of those explain. They run anyway, and these would with them.
    outside = {*ran.outside}
    for test in ran.opened.keys() - tests.keys():
        known = imported(test.partition("::")[0])
        outside |= {of for of in ran.opened[test] if of in project.tracked and of not in known}
        outside -= {of for of in known if of.endswith(".py") and basename(of) != "conftest.py"}
    return Voucher(
        commit=provenance.commit or "",
        conditions=conditions(config),
        folder=project.path_of(config.rootpath) or "",
        fail_on=tuple(sorted(settings.fail_on)),
        threshold=settings.threshold,
        always=tuple(sorted(ran.always)),
        opened=tuple(sorted(outside)),
        tests=tests,
    )


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
        self._voucher = voucher = run.voucher or Voucher("it does not say what its tests load")
        age = datetime.now(UTC) - run.created
        why = voucher.refused or _why_other(voucher, config)
        if not why and not 0 <= age.days < MOST_DAYS:
            why = (
                f"it is {age.days} days old, and {MOST_DAYS} are too many"
                if age.days > 0
                else "its clock was ahead"
            )
        if project is None:
            why = "git does not know this folder"
        elif not why and voucher.folder != project.path_of(config.rootpath):
            why = f"it is of tests in {voucher.folder or 'the top folder'}"
        if why or project is None:
            raise _NothingVouchesError(f"{path.name} vouches for nothing: {why}")
        self._project, self._root = project, config.rootpath
        self._changed, self._added = self._changes(config, path)
        days = f"{counted(age.days, 'day')} ago" if age.days else "today"
        self.words = f"{voucher.commit[:7]}, where they passed with these libraries, {days}"
        self._static = functools.cache(project.loads)
        self._shared = self._served_to_all()

    def _changes(self, config: pytest.Config, path: Path) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the paths that differ from the run's commit, and those of them that it does not have."""
        top, commit = self._project.top, self._voucher.commit
        if asked_of_git(["merge-base", "--is-ancestor", commit, "HEAD"], top) is None:
            why = (
                f"its commit {commit[:7]} is no ancestor of HEAD, or not here; fetch it with `fetch-depth: 0`"
            )
            raise _NothingVouchesError(f"{path.name} vouches for nothing: {why}")
        since = ["-c", "core.fileMode=true", "diff", "--raw", "--no-renames", "-z", commit, "--"]
        changed = asked_of_git(since, top)
        others = asked_of_git(["ls-files", "--others", "--exclude-standard", "-z"], top)
        if changed is None or others is None:
            raise _NothingVouchesError("git does not say what changed")
        parts = changed.split("\0")[:-1]
        raw = {of: about.split() for about, of in zip(parts[::2], parts[1::2], strict=True)}
        written = {self._project.path_of(of) for of in (path, *settings_of(config).reports)}
        new = {*others.split("\0")} - {"", *written} | {of for of, about in raw.items() if about[-1] == "A"}
        links = sorted(of for of, (was, now, *_) in raw.items() if _A_LINK in (was.lstrip(":"), now))
        for of in (*links, *sorted(filter(self._concerns_all, {*raw, *new}))):
            raise _NothingVouchesError(f"{of} changed, which concerns every test")
        self._project.gone = frozenset(of for of, about in raw.items() if about[-1] == "D")
        return frozenset({*raw, *new}), frozenset(new)

    def _concerns_all(self, path: str) -> bool:
        conftests = ("conftest.py", f"{self._voucher.folder}/conftest.py")
        return _OF_ALL.fullmatch(basename(path)) is not None or path in conftests

    def refuse_gone(self, collected: Set[str]) -> None:
        """Has everything run if a test is gone from a file that changed: who looks for it sees what runs."""
        for test in self._voucher.tests.keys() - collected:
            if self._project.path_of(self._root / test.partition("::")[0]) in self._changed:
                raise _NothingVouchesError(f"{test} is gone")

    def _served_to_all(self) -> frozenset[str]:
        """Returns what may serve every test: a module, fixture or plugin may keep it, or act on all tests.

        That is neither a module that the imports of a test explain, nor what a test opened in its own folder.
        """
        explained, shared = set[str](), set[str]()
        by_file: dict[str, set[str]] = {}
        for test, opened in self._voucher.tests.items():
            by_file.setdefault(test.partition("::")[0], set()).update(opened)
        for file, paths in by_file.items():
            static = self._static(self._root / file)
            explained |= static.files
            shared |= {of for of in paths if not (of in static.files or of.startswith(static.folders))}
        modules = {of for of in explained if of.endswith(".py") and not self._has_hooks(of)}
        return frozenset({*self._voucher.always, *shared, *(set(self._voucher.opened) - modules)})

    def _has_hooks(self, path: str) -> bool:
        """Returns whether a conftest may act on tests outside of its folder."""
        file = self._project.top / path
        return basename(path) == "conftest.py" and file.is_file() and b"def pytest_" in file.read_bytes()

    def why_run(self, item: pytest.Item) -> str:
        """Says why a test has to run; returns nothing if it need not."""
        own, file = self._voucher.tests.get(item.nodeid), item.nodeid.partition("::")[0]
        if own is None:
            return "did not pass there, were not judged, or load what git cannot tell"
        if item.path != self._root / file:
            return "lie outside of the root folder"
        try:
            static = self._static(item.path, marker_of(item).reads)
        except SettingsError as error:
            return str(error)
        opened = {*own, *self._shared}
        loads = self._project.loads(item.path, marker_of(item).reads, opened)
        lost = sorted(opened - self._project.tracked.keys() - self._changed)
        if loads.unsure or lost:
            return loads.unsure or f"git did not have {lost[0]}"
        found = sorted(
            path for path in self._changed if loads.has(path) or self._is_beside(path, opened, static)
        )
        return f"load {found[0]}" if found else ""

    def _is_beside(self, path: str, opened: Set[str], static: Loads) -> bool:
        """Returns whether a new file lies where a test has found others, or is called as one: it may win."""
        data = [of for of in opened if not (of.endswith(".py") and of in static.files)]
        alike = [of for of in data if of.endswith(".py") == path.endswith(".py")]
        return path in self._added and any(
            f"{dirname(path)}/".startswith(f"{dirname(of)}/") or basename(path) == basename(of)
            for of in alike
        )


_A_LINK = "120000"
"""What git calls a symbolic link."""


def _why_other(voucher: Voucher, config: pytest.Config) -> str:
    """Says what differs from the run that vouches, or in what it was less strict; nothing if all agrees."""
    settings, now = settings_of(config), conditions(config)
    for name in sorted({*voucher.conditions, *now}):
        before, after = voucher.conditions.get(name), now.get(name)
        if before != after and name.startswith(("variable", "options", "ini file", "records", "nvcc")):
            return f"{name} differed there"
        if before != after:
            return f"{name} was {before or 'not there'}, and is {after or 'not there'}"
    missing = sorted(settings.fail_on - {*voucher.fail_on})
    if missing:
        return f"--gpukern-fail-on={missing[0]} did not fail it"
    if voucher.threshold > settings.threshold:
        return f"its threshold was {100 * voucher.threshold:g} %"
    return ""
