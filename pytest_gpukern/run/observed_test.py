"""Has a test observed from its set-up to its teardown, and lets the gate fail it for what is found."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpukern.measure.observers import ObservedTest
    from pytest_gpukern.run.environment import Environment


class ObservedFromOutside:
    """What observers see of one test; nothing where nothing is measured on a GPU.

    Args:
        environment: the device, its observers, and what fails a test.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._begun = False
        self.found: ObservedTest | None = None
        """What is known since the teardown."""
        self.failed = False
        """Whether the gate failed the test for it, in its teardown."""

    def begin(self) -> None:
        """Begins before the test; what wider fixtures have made is there already."""
        if self._environment.gpu.measures:
            with self._environment.gpu.exclusive(), _context_may_be_lost():
                self._environment.gpu.observers.begin_test()
                self._begun = True

    def finish(self, *, passed: bool, let_go: Callable[[], object]) -> str | None:
        """Ends after the teardown; returns why the gate fails the test for what was found, or None.

        Args:
            passed: whether its body did; what a failure's traceback refers to is not kept by the test.
            let_go: drops what pytest still refers to, as values of fixtures.
        """
        settings = self._environment.settings
        if not self._begun:
            return None
        with self._environment.gpu.exclusive(), _context_may_be_lost():
            self.found = self._environment.gpu.observers.end_test(passed=passed, let_go=let_go)
        bad = [each for each in self.found.findings if each.kind in settings.gate_on] if self.found else []
        if settings.gate == "off" or not bad:
            return None
        self.failed = settings.gate == "fail"
        return "; ".join(f"{each.kind.upper()}: {each.text}" for each in bad)


@contextmanager
def _context_may_be_lost() -> Iterator[None]:
    """Looks at nothing where a kernel has taken the context with it: its own test says so."""
    from pytest_gpukern.gpu.runtime import CudaError

    with suppress(CudaError):
        yield
