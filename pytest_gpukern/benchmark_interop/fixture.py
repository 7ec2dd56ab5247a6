"""The `benchmark` fixture of a test, which leaves its running and timing to others."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def is_its_fixture(value: Any) -> bool:
    """Whether a value is a `benchmark` fixture of pytest-benchmark that `hand_over` can serve."""
    from pytest_benchmark.fixture import BenchmarkFixture

    # By its type, since CodSpeed's fixture answers to `isinstance`.
    is_its = issubclass(type(value), BenchmarkFixture)
    return is_its and hasattr(value, "_raw") and hasattr(value, "_raw_pedantic")


def hand_over(
    fixture: Any, call: Callable[..., Any], pedantic: Callable[..., Any], *, measures: bool
) -> Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]:
    """Lets a `benchmark` fixture leave its running and timing to others.

    The two methods of this one object that run and time are replaced, by attributes of the object. It stays
    what it is to everybody else: its class, which its own plugin checks; its name, group and `extra_info`;
    `weave`; the refusal of a second use; the notes about errors and skips. A fixture of ours by its name
    would be in the way of every test of every run, and a stand-in for the object fails that plugin's check.
    A test that sets `benchmark.disabled` gets what it got before: one call.

    Args:
        fixture: for which `is_its_fixture` holds.
        call: gets what the test calls the fixture with.
        pedantic: gets what the test gives to `pedantic`, completed by its defaults; and `rounds_given`,
            whether the test gave `rounds`, whose default is 1.
        measures: whether calls are measured; otherwise the fixture says that it is disabled.

    Returns:
        What takes it back: the fixture is what it was, and gets returned how it runs `call` and `pedantic`.
    """
    was_disabled = fixture.disabled
    own_call, own_pedantic, asked_pedantic = fixture._raw, fixture._raw_pedantic, fixture.pedantic
    place_of_rounds = list(inspect.signature(asked_pedantic).parameters).index("rounds")
    rounds_given = False

    def run(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        runs = own_call if measures and fixture.disabled else call
        return runs(*args, **kwargs)

    def note_rounds(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal rounds_given
        rounds_given = "rounds" in kwargs or len(args) > place_of_rounds
        return asked_pedantic(*args, **kwargs)

    def run_pedantic(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if measures and fixture.disabled:
            return own_pedantic(*args, **kwargs)
        return pedantic(*args, **kwargs, rounds_given=rounds_given)

    def hand_back() -> tuple[Callable[..., Any], Callable[..., Any]]:
        del fixture._raw, fixture._raw_pedantic, fixture.pedantic
        fixture.disabled = was_disabled
        return own_call, own_pedantic

    fixture._raw, fixture._raw_pedantic, fixture.pedantic = run, run_pedantic, note_rounds
    fixture.disabled = not measures  # under xdist it disables itself, and we measure
    return hand_back
