"""Has child processes compile what the tests launch, and judges that by the record."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from msgspec import structs

from pytest_gpukern.baseline.code_file import Code
from pytest_gpukern.code.record import growth, judged
from pytest_gpukern.gpu.theory import MULTIPROCESSORS
from pytest_gpukern.measure.observers import ObservedTest
from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.sessions import ChildRun, ChildSessions, Ending
from pytest_gpukern.report.run import AGAINST, CODE_ON_RECORD
from pytest_gpukern.report.units import counted
from pytest_gpukern.revisions.git import AgainstError, resolve, worktree
from pytest_gpukern.revisions.trees import Trees
from pytest_gpukern.session import stash
from pytest_gpukern.session.collection import info_of
from pytest_gpukern.session.item import case_of, measures_in
from pytest_gpukern.session.plan import Ahead
from pytest_gpukern.values.options import RECORDED_CODE
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.untrusted_json import ContentError, FileError, built

ARCHITECTURES = tuple(f"sm_{major}{minor}" for major, minor in MULTIPROCESSORS if (major, minor) >= (7, 5))
"""Those whose limits we know and that the compilers of CUDA 13 make code for."""
_Groups = list[list[str]]  # tests that share a process


class CodeGate:
    """Runs a run with `--gpukern-code`; a plugin of the process that reports.

    Raises pytest.UsageError if an architecture is unknown, git tells no base, or tests are distributed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._settings = settings = stash.settings_of(config)
        self._option = f"--gpukern-code={','.join(settings.code)}"
        stash.refuse_distribution(config, self._option, "its own processes")
        for name in settings.code:
            if name not in (*ARCHITECTURES, RECORDED_CODE):
                known = ", ".join(ARCHITECTURES)
                raise pytest.UsageError(f"{self._option}: {name!r} is none of {known}; or {RECORDED_CODE}")
        self._store = stash.environment_of(config).store
        self._revisions = None
        if settings.against is not None:
            with stash.refusing(AgainstError, option=f"--gpukern-against={settings.against}"):
                self._revisions = resolve(settings.against, config.rootpath)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Leaves out what measures nothing: nothing is executed."""
        yield
        others = [item for item in items if not measures_in(item)]
        if others:
            self._config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if measures_in(item)]

    def run(self, items: Sequence[pytest.Item]) -> Ahead:
        """Compiles what all tests launch."""
        with stash.refusing(AgainstError, FileError, option=self._option), phase("compiling"):
            return self._compile(items)

    def _compile(self, items: Sequence[pytest.Item]) -> Ahead:
        architectures = self._architectures(items)
        children = stash.environment_of(self._config).children
        options = (*children.options, f"--gpukern-code={','.join(architectures)}")
        if self._settings.baseline != "off" or self._revisions is not None:
            options += ("--gpukern-baseline=compare",)  # it has what autotuners chose
            folder = self._settings.baseline_dir
            options += () if folder is None else (f"--gpukern-baseline-dir={folder}",)
        children = dataclasses.replace(children, options=options)
        stash.tell(self._config, f"compiling {counted(len(items), 'test')} for {', '.join(architectures)}")
        groups = _groups(items)
        found = _in_processes(children, groups, {})
        before = self._before(found, children, groups)
        changed: Counter[tuple[str, str]] = Counter()
        endings, right = dict[str, Ending](), list[Result]()
        missing = Ending("failed", found.problem or "it was not compiled")
        for item in items:
            ending = found.endings.get(item.nodeid, missing)
            result = ending.result if ending.outcome == "passed" else None
            if result is not None:
                known = before.get(item.nodeid, {})
                result = _concluded(result, known)
                right.append(result)
                changed.update(_other_compilers(result.code, known))
            endings[item.nodeid] = ending._replace(result=result)
        named = sorted({"missing", "resources"} & self._settings.fail_on)
        vain = f"--gpukern-fail-on={','.join(named)}: no kernel was compiled"
        heading = [f"compiled for {', '.join(architectures)}; no kernel ran"]
        for (was, is_), count in changed.items():
            heading.append(f"  {was} → {is_}: code of {counted(count, 'kernel')} changed")
        written = self._store.write_code((result.case, result.code) for result in right)
        about = CODE_ON_RECORD if self._revisions is None else f"{AGAINST}{self._revisions.short}"
        closing = [f"wrote {os.path.relpath(path)}" for path in written]
        return Ahead(endings, {}, about, heading, closing, [vain] if named and not right else [])

    def _before(self, found: ChildRun, children: ChildSessions, groups: _Groups) -> dict[str, Code]:
        """Returns test → its code at the other revision, or else on record."""
        if self._revisions is not None:
            with worktree(self._revisions) as tree:
                found = _in_processes(children, groups, Trees.of(self._revisions, tree).moved)
            return {nodeid: end.result.code for nodeid, end in found.endings.items() if end.result}
        endings = found.endings if self._settings.baseline != "off" else {}
        return {nodeid: self._store.code(end.result.case) for nodeid, end in endings.items() if end.result}

    def _architectures(self, items: Sequence[pytest.Item]) -> Sequence[str]:
        if self._settings.code != (RECORDED_CODE,):
            return self._settings.code
        cases = [case for item in items if (case := info_of(self._config, item)) is not None]
        recorded = {name for case in cases for name in self._store.code(case)}
        if not recorded:
            raise pytest.UsageError(
                f"{self._option}: no machine code of the selected tests is on record; name architectures and "
                "record it: --gpukern-code=sm_90 --gpukern-baseline=create"
            )
        return sorted(recorded, key=lambda name: (len(name), name))  # the oldest first


def _concluded(result: Result, before: Code) -> Result:
    """Returns the result with a verdict for each architecture, and with what grew."""
    verdicts = {name: judged(result.case, name, code, before.get(name)) for name, code in result.code.items()}
    grown = [found for name, code in result.code.items() for found in growth(name, code, before.get(name))]
    return structs.replace(result, verdicts=verdicts, findings=tuple(grown))


def _other_compilers(now: Code, before: Code) -> Counter[tuple[str, str]]:
    """Returns (compiler before, compiler now) → kernels whose code is another now."""
    changed: Counter[tuple[str, str]] = Counter()
    for name, code in now.items():
        old = before.get(name, code)
        if old.compiler != code.compiler:
            known = {kernel.machine_code_sha256 for kernel in old.kernels}
            new = sum(kernel.machine_code_sha256 not in known for kernel in code.kernels)
            changed[old.compiler, code.compiler] += new
    return changed


def _groups(items: Sequence[pytest.Item]) -> _Groups:
    """Shares tests out among processes, one for each processor; those of one point stay together."""

    def point(item: pytest.Item) -> tuple[object, ...]:
        case = case_of(item)
        return (item.path, repr(case.point) if case is not None else "")

    together = [[item.nodeid for item in group] for _, group in itertools.groupby(items, key=point)]
    count = max(1, min(len(os.sched_getaffinity(0)), len(together)))
    groups: _Groups = [[] for _ in range(count)]
    for of_point in sorted(together, key=len, reverse=True):
        min(groups, key=len).extend(of_point)
    return groups


def _in_processes(children: ChildSessions, groups: _Groups, moved: Mapping[str, str]) -> ChildRun:
    """Runs each group of tests in a process of its own, side by side, and returns what all of them found."""
    together = ChildRun()
    # msgspec 0.22 may crash where two threads are the first to read a class.
    for kind in (Result, ObservedTest):
        with suppress(ContentError):
            built({}, kind)
    with ThreadPoolExecutor(len(groups)) as threads:
        for ran in threads.map(children.run, [ChildRequest(tuple(group), moved) for group in groups]):
            together.endings |= ran.endings
            together.problem = together.problem or ran.problem
    return together
