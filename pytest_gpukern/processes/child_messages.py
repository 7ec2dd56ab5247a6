"""What a child session tells, line by line, and what it comes to once the process has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpukern.measure.device_memory import TeardownMemory
from pytest_gpukern.values import strict_json
from pytest_gpukern.values.json_shape import ShapeError, check_shape
from pytest_gpukern.values.printable import bounded
from pytest_gpukern.values.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpukern.values.result import JsonDict

_ORDINARY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class ChildRun:
    """What a child session found.

    Attributes:
        results: test → what it found out, of those that found something.
        outcomes: test → (`passed`, `failed`, `skipped` or `xfailed`, why in words), of those that ended.
        modules: (name, file, SHA-256) of the modules that were watched for.
        uncollected: files that could not be collected, and why.
        listed: test → how pytest-benchmark lists it, of those that use its fixture.
        others: tests of this plugin's that nobody wanted, of a session that collected all.
        problem: why not every test ended, in words with the last lines of output, or None.
        during: the test that was running when it ended early, or None.
        ended_early: whether its pytest did not come to its end; else a test without an outcome is not there.
        status: the exit status; negative for a signal; None where it was ended for its silence.
    """

    results: Mapping[str, Result] = field(default_factory=dict)
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    modules: tuple[tuple[str, str, str], ...] = ()
    uncollected: tuple[str, ...] = ()
    listed: Mapping[str, JsonDict] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    problem: str | None = None
    during: str | None = None
    ended_early: bool = False
    status: int | None = None


class Heard:
    """What a child has told so far.

    Args:
        file: of lines, each a JSON object; it may not be there yet, and its last line may be torn.
        wanted: the tests that were asked for.
    """

    def __init__(self, file: Path, wanted: frozenset[str]) -> None:
        self._file = file
        self._read = 0
        self.wanted = wanted
        self.results: dict[str, Result] = {}
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.modules: tuple[tuple[str, str, str], ...] = ()
        self.uncollected: list[str] = []
        self.listed: dict[str, JsonDict] = {}
        self.others: tuple[str, ...] = ()
        self.running: str | None = None
        self.ended_with: int | None = None
        """pytest's own exit status, once it is done; the process may end otherwise."""
        self.damage: str | None = None

    @property
    def missing(self) -> list[str]:
        """Wanted tests of which no outcome was told."""
        return sorted(self.wanted - self.outcomes.keys())

    @property
    def ended_early(self) -> bool:
        """Whether its pytest has not come to its end."""
        return self.ended_with not in _ORDINARY

    def listen(self) -> bool:
        """Takes in the lines that are new and whole; whether there were any."""
        try:
            with self._file.open("rb") as lines:
                lines.seek(self._read)
                new = lines.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return bool(whole)

    def run(self, status: int | None, problem: str | None) -> ChildRun:
        """All of it."""
        return ChildRun(
            results=self.results,
            outcomes=self.outcomes,
            modules=self.modules,
            uncollected=tuple(self.uncollected),
            listed=self.listed,
            others=self.others,
            problem=problem,
            during=self.running,
            ended_early=self.ended_early,
            status=status,
        )

    def _take(self, line: bytes) -> None:
        try:
            told = strict_json.decoded(line)
            kind = told["kind"]
            if kind == "start":
                self.running = _text(told["nodeid"])
            elif kind == "test":
                self._take_test(told)
            elif kind == "modules":
                self.modules = tuple(
                    (_text(name), _text(file), _text(digest)) for name, file, digest in told["modules"]
                )
            elif kind == "uncollected":
                self.uncollected.append(f"{told['nodeid']}: {told['text']}")
            elif kind == "listed":
                self.listed[_text(told["nodeid"])] = dict(told["listed"])
            elif kind == "memory":
                self._take_memory(_text(told["nodeid"]), told["memory"])
            elif kind == "others":
                self.others = tuple(map(_text, told["nodeids"]))
            elif kind == "end":
                self.running, self.ended_with = None, told["status"]
        except (ValueError, KeyError, TypeError, ShapeError) as error:
            self.damage = self.damage or f"{line[:60]!r} makes no sense: {bounded(str(error), 200)}"

    def _take_test(self, told: JsonDict) -> None:
        nodeid = _text(told["nodeid"])
        self.outcomes[nodeid] = (_text(told["outcome"]), _text(told["text"]))
        if told["result"] is not None:  # a failed teardown tells of none
            check_shape(told["result"], Result, "result")
            self.results[nodeid] = Result.from_json(told["result"])

    def _take_memory(self, nodeid: str, told: JsonDict) -> None:
        if nodeid in self.results:
            check_shape(told, TeardownMemory, "memory")
            self.results[nodeid] = TeardownMemory.from_json(told).added_to(self.results[nodeid])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value
