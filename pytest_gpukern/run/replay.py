"""Makes tests of this process report what child sessions found, instead of running them here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_PASSED_AGAINST_A_STRICT_MARK = "[XPASS(strict)]"
"""pytest's text for a test that passed but should fail. It passes here: its mark fails it once more."""


def refuse_distribution(config: pytest.Config, option: str, what: str) -> None:
    """Raises pytest.UsageError if tests are distributed: under `option`, `what` takes turns on one GPU."""
    if config.getoption("dist", "no") != "no" and config.getoption("tx", None):
        raise pytest.UsageError(
            f"{option}: {what} take turns on one GPU, so tests cannot be distributed; drop -n, or add -n 0"
        )


def runs_tests(session: pytest.Session) -> bool:
    """Returns whether the collected tests are about to run."""
    collected = not session.testsfailed or session.config.option.continue_on_collection_errors
    return bool(collected and not session.config.option.collectonly)


def replay(item: pytest.Item, say: Callable[[], None]) -> None:
    """Makes a test do nothing but `say`; the child sessions have set up its fixtures."""

    def nothing() -> None:
        pass

    item.setup = item.teardown = nothing  # type: ignore[method-assign]
    item.runtest = say  # type: ignore[method-assign]


def end_as(outcome: str, text: str) -> None:
    """Ends the running test as it ended in a child session: `passed`, `failed`, `skipped` or `xfailed`."""
    if outcome == "failed" and not text.startswith(_PASSED_AGAINST_A_STRICT_MARK):
        pytest.fail(text, pytrace=False)
    if outcome == "xfailed":
        pytest.xfail(text)
    if outcome == "skipped":
        pytest.skip(text)
