"""Runs the tests of `--gpukern-sanitize` under each tool before the test loop."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_gpukern.processes.messages import ChildRequest
from pytest_gpukern.processes.sessions import ChildRun, Ending
from pytest_gpukern.report.progress import telling_now_and_then
from pytest_gpukern.sanitizer import sessions
from pytest_gpukern.sanitizer.finding import Home, Place
from pytest_gpukern.sanitizer.judge import Judgement, judge_folder
from pytest_gpukern.sanitizer.self_check import missed_fault
from pytest_gpukern.sanitizer.tool import ToolMissingError, environment_under, find_tool
from pytest_gpukern.session import stash
from pytest_gpukern.session.item import FIXTURES, MARKER, case_of, place_of
from pytest_gpukern.session.plan import Ahead
from pytest_gpukern.values.atomic_file import TemporaryFolder


class Sanitizer:
    """Runs the tools of a run with `--gpukern-sanitize`; a pytest plugin of the process that reports.

    Raises:
        pytest.UsageError: there is no GPU or no compute-sanitizer, or tests are distributed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tools = stash.settings_of(config).sanitize
        self._tests: dict[str, dict[str, sessions.TestRun]] = {}  # tool → test → what it found
        self._took_s: dict[str, float] = {}
        self._option = f"--gpukern-sanitize={','.join(self._tools)}"
        stash.refuse_distribution(config, self._option, "the sessions under a tool")
        if not stash.environment_of(config).gpu.has_gpu:
            raise pytest.UsageError(
                f"{self._option}: compute-sanitizer needs a GPU: "
                f"{stash.environment_of(config).gpu.why_no_gpu}; drop the option here"
            )
        with stash.refusing(ToolMissingError, option=self._option):
            self._program = find_tool()

    def run(self, items: Sequence[pytest.Item]) -> Ahead:
        """Has the tools look at the tests that launch something on the GPU."""
        checked, vain = {item.nodeid: item for item in items if self._is_for_a_tool(item)}, []
        for tool in self._tools:
            start_s = time.monotonic()
            self._tests[tool] = self._look(tool, checked)
            self._took_s[tool] = time.monotonic() - start_s
            if why := sessions.why_nothing_was_checked([*self._tests[tool].values()]):
                vain.append(f"{self._option}: {tool} checked nothing: {why}")
        return Ahead({nodeid: self._ending(item) for nodeid, item in checked.items()}, problems=vain)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for tool, took_s in self._took_s.items():
            terminalreporter.write_line(
                f"gpukern: {tool}: {sessions.counted(self._tests[tool].values())} in {took_s:.0f} s, "
                f"by compute-sanitizer {self._program.version}"
            )

    def _is_for_a_tool(self, item: pytest.Item) -> bool:
        """Returns whether a test may launch something on the GPU that a tool is to check.

        Host variants launch nothing there. Broken variants are checked if one of the tools must reject them.
        """
        case = case_of(item)
        if case is None:
            names = getattr(item, "fixturenames", ())
            return not FIXTURES.isdisjoint(names) or item.get_closest_marker(MARKER) is not None
        if not case.on_gpu:
            return False
        detected_by = case.variant.detected_by
        return detected_by in self._tools if detected_by is not None else not case.variant.is_broken

    def _look(self, tool: str, items: Mapping[str, pytest.Item]) -> dict[str, sessions.TestRun]:
        """Runs the tests under one tool, all in one process; those that it must reject run alone."""
        judges = {nodeid: _detected_by(item) for nodeid, item in items.items()}
        together = [nodeid for nodeid, judge in judges.items() if judge is None]
        alone = [nodeid for nodeid, judge in judges.items() if judge == tool]
        run = functools.partial(self._session, tool)
        with stash.environment_of(self._config).gpu.exclusive():
            doubt = missed_fault(self._program, tool) if items else None
        if doubt is not None:
            return dict.fromkeys([*together, *alone], sessions.TestRun(Judgement(reason=doubt)))
        groups = [together, *([nodeid] for nodeid in alone)]
        return {test: found for group in groups for test, found in sessions.attributed(group, run).items()}

    def _session(self, tool: str, nodeids: Sequence[str]) -> tuple[Judgement, ChildRun]:
        """Runs tests in a fresh process under a tool; returns its judgement, and what became of each test."""
        say = functools.partial(stash.tell, self._config)
        say(f"{tool}: {nodeids[0] if len(nodeids) == 1 else f'{len(nodeids)} tests in one process'}")
        environment = stash.environment_of(self._config)
        children = environment.children
        if self._config.pluginmanager.hasplugin("benchmark"):  # its own loop would run thousands of calls
            children = dataclasses.replace(children, options=(*children.options, "--benchmark-disable"))
        with TemporaryFolder("sanitizer") as folder:
            request = ChildRequest(
                tuple(nodeids),
                environ={**environment.gpu.for_children, **environment_under(tool, os.environ)},
                command_prefix=self._program.command(tool, Path(folder)),
            )
            ran = children.run(request, telling_now_and_then(say, tool))
            return judge_folder(Path(folder), tool, ran.status, ran.problem), ran

    def _ending(self, item: pytest.Item) -> Ending:
        by_tool = {tool: tests[item.nodeid] for tool, tests in self._tests.items() if item.nodeid in tests}
        case, detected_by = case_of(item), _detected_by(item)
        what = "variant" if case is not None and case.variant.prepare is not None else "test"
        home = Home(what, Place(None, *place_of(item)), str(self._config.rootpath))
        outcome, text = sessions.ending(by_tool, detected_by=detected_by, home=home)
        ends = [test.ending for test in reversed(by_tool.values()) if test.ending is not None]
        result = next((end.result for end in ends if end.result is not None), None)
        return Ending(outcome, text, result)


def _detected_by(item: pytest.Item) -> str | None:
    case = case_of(item)
    return case.variant.detected_by if case is not None else None
