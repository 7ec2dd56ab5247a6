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
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from datetime import UTC, datetime, timedelta
from importlib import metadata
from importlib.machinery import all_suffixes
from pathlib import Path
from posixpath import basename, dirname, splitext

import pytest

from pytest_gpukern.gpu.fingerprint import asked_of_git
from pytest_gpukern.package import FOLDER, __version__
from pytest_gpukern.report.run import Unchanged, Voucher
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.report.units import counted
from pytest_gpukern.run.loaded_files import BEFORE, BETWEEN, Project
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
    r".*\.(toml|cfg|ini|lock)|.*(requirements|constraints).*\.(txt|in)|(.*/)?(setup|conftest)\.py|"
    r"(.*/)?(environment|conda).*\.ya?ml|(.*/)?\.git(attributes|modules)"
)
"""Files that say what is installed and how tests run: where one changed, everything runs."""
_MODULES = tuple(all_suffixes())
_LINK = "120000"
"""What git calls a symbolic link."""
_VARIABLES = re.compile(
    r"(?!\w+_(VISIBLE_DEVICES|DEVICE_ORDER))(NUMBA|TRITON|HELION|TILELANG|TVM|CUDA|TORCH\w*|PYTORCH|CUPY|"
    r"PYCUDA|NVIDIA|NVCC|NVRTC|CUBLAS|CUDNN|CUTLASS|CUTE|NCCL|OMP|KMP|GOMP|MKL|OPENBLAS|XLA|JAX|PALLAS|TF|TI|WP|"
    r"WARP|HIP|HSA|ROCM|CMAKE|LLVM|MLIR)_.*|LD_(LIBRARY_PATH|PRELOAD)|CC|CXX|(C|CXX|CPP|CUDA|LD)FLAGS|"
    r"PYTHON(PATH|OPTIMIZE|HASHSEED|WARNINGS|DEVMODE)|PYTEST_PLUGINS|C((PLUS)?_INCLUDE_)?PATH|LIBRARY_PATH"
)
"""Environment variables that count; but not which card of a model a runner hands out: models are compared."""
_NO_MATTER = re.compile(r"(-k|-m|--deselect|--ignore|--capture|--strict).*|-s|-pno:cacheprovider")
"""Options that choose tests, or of which a test knows nothing."""


def conditions(config: pytest.Config, project: Project) -> dict[str, str]:
    """Returns what has to be equal in two runs, so that the same files do the same."""
    environment, settings, top = environment_of(config), settings_of(config), str(config.rootpath)
    found, plugins = environment.gpu.fingerprint, config.pluginmanager.list_plugin_distinfo()
    began, nvcc = config.stash.get(BEGAN_WITH, dict(os.environ)), shutil.which("nvcc")
    options = [of for of in environment.children.options if not _NO_MATTER.fullmatch(of)]
    variables = {
        f"variable {name}": _hash(value.replace(top, ".").encode(errors="replace"))
        for name, value in began.items()
        if _VARIABLES.fullmatch(name)
    }
    return {
        "pytest-gpukern": f"{__version__} {_hash_of(FOLDER, '*.py')}",
        "Python": f"{found.python_version} {sys.flags.optimize} {sys.flags.dev_mode}",
        "driver": f"{found.driver_version}",
        "card's model": environment.gpu.model_key(on_gpu=True) if environment.gpu.has_gpu else "none",
        "options": f"{' '.join(options)} timeout={settings.timeout_s}",
        "threshold": f"{settings.threshold}",
        "folder of tests": project.path_of(config.rootpath),
        "plugins": " ".join(sorted({of.project_name for _, of in plugins})),
        "machine": " ".join((platform.machine(), platform.python_implementation(), *platform.libc_ver())),
        "ini file": _hash(config.inipath.read_bytes() if config.inipath is not None else b""),
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
        opened: test, or when else → what was opened in it, as `OpenedFiles.carried` tells.
        project: imports by Python's path as it is before tests run, which may extend it.
    """

    def __init__(self, folder: Path) -> None:
        self.blind, self.project = "", Project.around(folder)
        self.project and self.project.roots  # noqa: B018 - it is asked for now
        self.opened, self._ended = defaultdict[str, set[str]](set), defaultdict[str, list[str]](list)

    def take(self, report: pytest.TestReport, carried: JsonDict) -> None:
        """Notes what a phase of a test came to; `carried` is what our part of its report holds."""
        fine = report.passed and not hasattr(report, "wasxfail")
        self._ended[report.nodeid].append(report.when if fine else "failed")
        self.take_opened(carried)

    def take_opened(self, carried: JsonDict) -> None:
        for when, paths in carried.get("opened", {}).items():
            self.opened[when].update(paths)
        self.blind = self.blind or carried.get("blind", "")

    @property
    def passed(self) -> set[str]:
        """Returns the tests that passed at their first attempt, without a mark that expects a failure."""
        return {test for test, ended in self._ended.items() if ended == ["setup", "call", "teardown"]}


def voucher_of(
    config: pytest.Config, ran: Ran, results: Sequence[Result], *, green: bool, whole: bool
) -> Voucher:
    """Returns for which tests a run vouches, or why for none."""
    settings, provenance = settings_of(config), environment_of(config).provenance
    project = ran.project
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
    passed, tests, explained = ran.passed - undecided, dict[str, tuple[str, ...]](), set[str]()
    shared, between = ran.opened.pop(BEFORE, set()), ran.opened.pop(BETWEEN, set())
    path_of = {test: project.path_of(config.rootpath / test.partition("::")[0]) for test in ran.opened}
    folders = {*map(dirname, path_of.values())}
    for test, path in path_of.items():
        static, _ = project.imported(path, texts=False)
        opened = ran.opened[test] | ran.opened.get(test.partition("::")[0], set())
        if test in passed and project.comparable >= opened | static:
            tests[test] = tuple(sorted(opened - static))
        own = f"{dirname(path)}/"  # whose files count for its tests, but not for those of folders in it
        alone = set() if any(of.startswith(own) for of in folders) else project.comparable
        shared |= {of for of in opened - static if not (of in alone and of.startswith(own))}
        explained |= {of for of in static if of.endswith(".py") and basename(of) != "conftest.py"}
    return Voucher(
        commit=provenance.commit or "",
        conditions=conditions(config, project),
        fail_on=tuple(sorted(settings.fail_on)),
        opened=tuple(sorted(shared | between - explained)),
        tests=tests,
    )


def leave_out_unchanged(config: pytest.Config, items: list[pytest.Item], path: Path) -> None:
    """Leaves out the tests for which a run's file vouches that nothing they load changed, and notes them."""
    if CHILD in config.stash:  # it is told which tests to run
        return
    try:
        vouches, reasons = _reasons_to_run(config, path, items)
    except (FileError, SettingsError, _NothingVouchesError) as error:
        vouches, reasons = "", {item.nodeid: str(error) for item in items if may_use_gpu(item)}
    left = [item for item in items if reasons.get(item.nodeid) == ""]
    ran = Counter(why for why in reasons.values() if why)
    unchanged = Unchanged(vouches, tuple(item.nodeid for item in left), dict(ran.most_common()))
    config.stash[UNCHANGED] = unchanged
    if hasattr(config, "workeroutput"):
        config.workeroutput[UNCHANGED_OF_A_WORKER] = plain(unchanged)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if reasons.get(item.nodeid) != ""]


class _NothingVouchesError(Exception):
    """Says why every test runs."""


def _reasons_to_run(
    config: pytest.Config, path: Path, items: Sequence[pytest.Item]
) -> tuple[str, dict[str, str]]:
    """Returns which run vouches, and test → why it has to run, or nothing.

    Raises:
        _NothingVouchesError: all have to; also FileError or SettingsError, if a file or a marker is wrong.
    """
    project, run = Project.around(config.rootpath), read_run(path)
    voucher = run.voucher or Voucher("it does not say what its tests load")
    age = datetime.now(UTC) - run.created
    if project is None:
        raise _NothingVouchesError("git does not know this folder")
    if refused := _why_not(voucher, age, config, project):
        raise _NothingVouchesError(f"{path.name} vouches for nothing: {refused}")
    written = {project.path_of(of) for of in (path, *settings_of(config).reports)}
    project.changed = _changed_since(voucher, project, written)
    file_of = {test: config.rootpath / test.partition("::")[0] for test in voucher.tests}
    for test in sorted(file_of.keys() - {item.nodeid for item in items}):
        is_sought = _is_sought(config, file_of[test])  # so it is missed if all run
        if is_sought and project.loads(file_of[test])[0] & project.changed:
            raise _NothingVouchesError(f"{test} is gone")
    reasons, loads_of = dict[str, str](), functools.cache(project.loads)
    for item in filter(may_use_gpu, items):
        loads, unsure = loads_of(item.path, marker_of(item).reads, voucher.tests.get(item.nodeid, ()))
        changed = sorted(loads & project.changed)
        if item.path != file_of.get(item.nodeid):
            unsure = "did not pass there, were not judged, or load what git cannot tell"
        reasons[item.nodeid] = unsure or (f"load {changed[0]}" if changed else "")
    days = f"{counted(age.days, 'day')} ago" if age.days else "today"
    return f"{voucher.commit[:7]}, where they passed with these libraries, {days}", reasons


def _is_sought(config: pytest.Config, file: Path) -> bool:
    """Returns whether this run asks for all tests of a file, as far as its arguments tell."""
    chosen = any(config.getoption(name, None) for name in ("keyword", "markexpr", "deselect", "lf"))
    start = config.invocation_params.dir
    folders = [(start / argument).resolve() for argument in config.args if "::" not in argument]
    return not chosen and any(map(file.resolve().is_relative_to, folders))


def _changed_since(voucher: Voucher, project: Project, written: Set[str]) -> frozenset[str]:
    """Returns the paths that differ from a run's commit, but for files that runs have written.

    Raises:
        _NothingVouchesError: git does not tell, or one of them concerns every test.
    """
    top, commit = project.top, voucher.commit
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
    how |= dict.fromkeys({*others.split("\0")} - {"", *written}, "A")
    shared, unsure = project.imported(*voucher.opened)
    conftests = (of for of in voucher.opened if basename(of) == "conftest.py")
    data = {*voucher.opened} - project.imported(*conftests)[0]
    opened = data.union(*voucher.tests.values())
    for of in sorted(how):
        is_link = _LINK in how[of] or (top / of).is_symlink()
        is_gone = how[of].endswith("D") and of.endswith(_MODULES)
        is_found = how[of].endswith("A") and project.hash_of(of) and _may_be_found(of, data, opened)
        if _OF_ALL.fullmatch(of) or of in shared or is_link or is_gone or is_found:
            raise _NothingVouchesError(f"{of} changed, which concerns every test")
    if unsure:
        raise _NothingVouchesError(unsure)
    return frozenset(how)


def _may_be_found(new: str, data: Set[str], opened: Set[str]) -> bool:
    """Returns whether a new file lies where a test found others like it, or is called, or ends, as one."""
    alike = {path for path in opened if path.endswith(".py") == new.endswith(".py")}
    folders = tuple({f"{dirname(path)}/" for path in alike & data})
    suffix = splitext(new)[1]
    ending = f"/{basename(new)}" if suffix in ("", ".py") else suffix
    return f"{dirname(new)}/".startswith(folders) or any(f"/{path}".endswith(ending) for path in alike)


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
