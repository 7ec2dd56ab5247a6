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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from posixpath import basename, dirname
from typing import NamedTuple

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
    FIXTURE,
    UNCHANGED,
    environment_of,
    settings_of,
)
from pytest_gpukern.values.options import SettingsError
from pytest_gpukern.values.result import Correctness, Result
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
    r"(NUMBA|TRITON|CUDA|TORCH|PYTORCH|CUPY|PYCUDA|NVIDIA|OMP|MKL|OPENBLAS|XLA|JAX)_.*|"
    r"PYTHON(PATH|OPTIMIZE|HASHSEED|WARNINGS)|LD_(LIBRARY_PATH|PRELOAD)|PYTEST_PLUGINS"
)
_OF_A_CARD = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
"""Which card of a model a runner hands out; the model is compared."""


def conditions(config: pytest.Config) -> dict[str, str]:
    """Returns what has to be equal in two runs, so that the same files do the same."""
    environment, top = environment_of(config), str(config.rootpath)
    found, plugins = environment.gpu.fingerprint, config.pluginmanager.list_plugin_distinfo()
    began = config.stash.get(BEGAN_WITH, dict(os.environ))
    variables = {
        f"variable {name}": hashlib.sha256(value.replace(top, ".").encode(errors="replace")).hexdigest()[:12]
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
        **variables,
        **{f"library {of.name}": _version(of) for of in metadata.distributions()},
    }


def _own_content() -> str:
    """Returns a hash of this plugin's modules where it runs from a checkout, for which no version stands."""
    if "-packages" in FOLDER.parts[-2]:
        return ""
    modules = (path.read_bytes() for path in sorted(FOLDER.rglob("*.py")))
    return hashlib.sha256(b"".join(modules)).hexdigest()[:12]


def _version(of: metadata.Distribution) -> str:
    """Returns a distribution's version; of one built from a folder or a commit, also what its content is."""
    built = of.read_text("direct_url.json") is not None
    record = hashlib.sha256((of.read_text("RECORD") or "").encode()).hexdigest()[:12] if built else ""
    return f"{of.version} {record}".strip()


class Ran(NamedTuple):
    """Says how the tests of a run ended, as far as a voucher needs it.

    Attributes:
        problem: why the run vouches for nothing, such as a failed test.
        passed: tests that passed at their first attempt, without a mark that expects a failure.
        opened: test → what was opened in it.
        before: file of tests, or fixture of several → what was opened for it; "" → what was opened otherwise.
    """

    problem: str
    passed: frozenset[str]
    opened: Mapping[str, Sequence[str]]
    before: Mapping[str, Iterable[str]]


def voucher_of(config: pytest.Config, ran: Ran, results: Sequence[Result], *, whole: bool) -> Voucher:
    """Returns for which tests a run vouches, or why for none."""
    environment, settings = environment_of(config), settings_of(config)
    project, provenance = Project.around(config.rootpath), environment.provenance
    refused = ran.problem
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
    return Voucher(
        commit=provenance.commit or "",
        conditions=conditions(config),
        fail_on=tuple(sorted(settings.fail_on)),
        threshold=settings.threshold,
        opened={file: tuple(sorted(paths)) for file, paths in ran.before.items()},
        tests={
            test: tuple(ran.opened[test])
            for test in ran.opened
            if test in ran.passed and judged.get(test, True) and project.tracked.keys() >= {*ran.opened[test]}
        },
    )


def leave_out_unchanged(config: pytest.Config, items: list[pytest.Item], path: Path) -> None:
    """Leaves out the tests for which a run's file vouches that nothing they load changed, and notes them."""
    if CHILD in config.stash:  # it is told which tests to run
        return
    mine = [item for item in items if may_use_gpu(item)]
    try:
        known = _Known(config, path)
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
        config.workeroutput["gpukern_unchanged"] = plain(unchanged)
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
        if why or project is None:
            raise _NothingVouchesError(f"{path.name} vouches for nothing: {why}")
        self._project, self._root = project, config.rootpath
        self._changed, self._added = self._changes(path)
        days = f"{counted(age.days, 'day')} ago" if age.days else "today"
        self.words = f"{voucher.commit[:7]}, where they passed with these libraries, {days}"
        self._static = functools.cache(self._loads)
        self._shared = self._opened_by_all()

    def _changes(self, path: Path) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the paths that differ from the run's commit, and those of them that it does not have."""
        top, commit = self._project.top, self._voucher.commit
        if asked_of_git(["merge-base", "--is-ancestor", commit, "HEAD"], top) is None:
            why = (
                f"its commit {commit[:7]} is no ancestor of HEAD, or not here; fetch it with `fetch-depth: 0`"
            )
            raise _NothingVouchesError(f"{path.name} vouches for nothing: {why}")
        since = ["diff", "--name-only", "--no-renames", "-z", commit]
        changed = asked_of_git([*since, "--"], top)
        added = asked_of_git([*since, "--diff-filter=A", "--"], top)
        others = asked_of_git(["ls-files", "--others", "--exclude-standard", "-z"], top)
        if changed is None or added is None or others is None:
            raise _NothingVouchesError("git does not say what changed")
        new = {*added.split("\0"), *others.split("\0")} - {""}
        all_changes = frozenset({*changed.split("\0")} - {""} | new)
        of_all = sorted(of for of in all_changes if self._concerns_all(of))
        if of_all:
            raise _NothingVouchesError(f"{of_all[0]} changed, which says how tests run")
        return all_changes, frozenset(new)

    def _concerns_all(self, path: str) -> bool:
        root = os.path.relpath(self._root, self._project.top)
        conftest = "conftest.py" if root == "." else f"{root}/conftest.py"
        return bool(_OF_ALL.fullmatch(basename(path)) or _OF_ALL.fullmatch(path)) or path in (
            "conftest.py",
            conftest,
        )

    def refuse_gone(self, collected: Set[str]) -> None:
        """Has everything run if a test is gone from a file that changed: who looks for it sees what runs."""
        inside = {self._project.path_of(self._root / file): file for file in self._test_files}
        changed = {inside[path] for path in self._changed if path in inside}
        for test in self._voucher.tests:
            if test.partition("::")[0] in changed and test not in collected:
                raise _NothingVouchesError(f"{test} is gone")

    @property
    def _test_files(self) -> set[str]:
        return {test.partition("::")[0] for test in self._voucher.tests}

    def _loads(self, file: Path, reads: tuple[str, ...]) -> Loads:
        return self._project.loads(file, reads)

    def _opened_by_all(self) -> dict[str, frozenset[str]]:
        """Returns test file, or fixture, or nothing → what was opened in it beyond what imports explain."""
        opened = {what: {*paths} for what, paths in self._voucher.opened.items()}
        for test, paths in self._voucher.tests.items():
            opened.setdefault(test.partition("::")[0], set()).update(paths)
        files = {what: self._files(what) for what in opened if what and not what.startswith(FIXTURE)}
        explained = frozenset().union(*files.values())
        return {what: frozenset(paths - files.get(what, explained)) for what, paths in opened.items()}

    def _files(self, test_file: str) -> frozenset[str]:
        return self._static(self._root / test_file, ()).files

    def _serves(self, what: str, item: pytest.Item, files: frozenset[str]) -> bool:
        """Returns whether a test may use what was opened while another one ran, or outside of all.

        What one test has loaded serves another one by a fixture, or by a module of both that keeps it.
        """
        if item.nodeid.startswith(f"{what}::"):
            return True
        imports, names = self._project.imports, getattr(item, "fixturenames", ())
        if what.startswith(FIXTURE):
            return what.removeprefix(FIXTURE) in names or any(imports(path).asks for path in _modules(files))
        return not what or any(imports(path).keeps for path in _modules(files & self._files(what)))

    def why_run(self, item: pytest.Item) -> str:
        """Says why a test has to run; returns nothing if it need not."""
        if item.nodeid not in self._voucher.tests:
            return "did not pass there, or were not judged"
        try:
            reads = marker_of(item).reads
        except SettingsError as error:
            return str(error)
        static = self._static(item.path, reads)
        opened = {*self._voucher.tests[item.nodeid]}
        opened.update(
            *(
                paths
                for what, paths in self._shared.items()
                if paths and self._serves(what, item, static.files)
            )
        )
        loads = self._project.loads(item.path, reads, opened) if opened - static.files else static
        if loads.unsure:
            return loads.unsure
        with_data = {dirname(path) for path in opened if not path.endswith(".py")}
        new_data = (path for path in self._added if not path.endswith(".py"))
        beside = {path for path in new_data if dirname(path) in with_data}  # a pattern may find it
        found = sorted(path for path in self._changed if path in beside or loads.has(path))
        return f"load {found[0]}" if found else ""


def _modules(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.endswith(".py")]


def _why_other(voucher: Voucher, config: pytest.Config) -> str:
    """Says what differs from the run that vouches, or in what it was less strict; nothing if all agrees."""
    settings, now = settings_of(config), conditions(config)
    for name in sorted({*voucher.conditions, *now}):
        before, after = voucher.conditions.get(name), now.get(name)
        if before != after and name.startswith(("variable", "options")):
            return f"{name} differed there"
        if before != after:
            return f"{name} was {before or 'not there'}, and is {after or 'not there'}"
    missing = sorted(settings.fail_on - {*voucher.fail_on})
    if missing:
        return f"--gpukern-fail-on={missing[0]} did not fail it"
    if voucher.threshold > settings.threshold:
        return f"its threshold was {100 * voucher.threshold:g} %"
    return ""
