"""The device's memory around one test: looked at while the device is held, and judged in the teardown."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pytest_gpukern.measure.device_memory import MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpukern.measure.device_memory import TeardownMemory
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.values.result import Result


class FollowedMemory:
    """One test's; does nothing where nothing is measured on a GPU.

    Args:
        environment: the device, and what fails a test.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._begun = False
        self.found: TeardownMemory | None = None
        """What is known since the teardown."""
        self.failed = False
        """Whether the gate failed the test for it, in its teardown."""

    def begin(self) -> None:
        """Notes what is in use before the test; what wider fixtures have made is."""
        environment = self._environment
        if not environment.settings.benchmark or not environment.has_gpu:
            return
        with environment.exclusive(), _context_may_be_lost():
            assert environment.memory is not None
            environment.memory.begin()
            self._begun = True

    def finish(self, result: Result, *, passed: bool, let_go: Callable[[], object]) -> str | None:
        """Notes what is in use after the teardown, and what the test keeps.

        Returns why the gate fails the test for that, in words, or None.

        Args:
            result: of the test.
            passed: whether its body did; what a failure's traceback refers to is not kept by the test.
            let_go: drops what pytest still refers to, as values of fixtures.
        """
        environment, settings = self._environment, self._environment.settings
        if not self._begun or environment.memory is None:
            return None
        with environment.exclusive(), _context_may_be_lost():
            self.found = environment.memory.finish(passed=passed, let_go=let_go)
        finding = self.found.finding if self.found is not None else None
        if self.found is None or finding is None:
            return None
        if any(each.kind == MEMORY for each in result.findings):
            # What launches leak is still there: it was told, and failed the test, once.
            self.found = dataclasses.replace(self.found, finding=None)
            return None
        if settings.gate == "off" or MEMORY not in settings.gate_on:
            return None
        self.failed = settings.gate == "fail"
        return f"{MEMORY.upper()}: {finding.text}"


@contextmanager
def _context_may_be_lost() -> Iterator[None]:
    """Looks at nothing where a kernel has taken the context with it: its own test says so."""
    from pytest_gpukern.gpu.runtime import CudaError

    with suppress(CudaError):
        yield
