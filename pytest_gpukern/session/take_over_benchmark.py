"""Measures what a test of an existing suite hands to pytest-benchmark's own `benchmark` fixture.

This needs the marker `gpu_benchmark` on the test, or `--gpukern-all`, in a run with `--gpu-benchmark` or
`--gpukern-code`. All other tests and runs are pytest-benchmark's alone: we touch nothing of theirs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from pytest_gpukern.benchmark_interop import pytest_benchmark as interop
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.measure.by_timer import HOST_REMEDY
from pytest_gpukern.run.call_subject import CallTarget, Loop
from pytest_gpukern.session.item import MARKER, attempt_at, new_test
from pytest_gpukern.session.stash import environment_of, settings_of
from pytest_gpukern.timers.timer import NothingLaunched, TimerUnavailable
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import JsonDict


class GpukernWarning(UserWarning):
    """Warns of a marked test that is not measured."""


class TakenOver:
    """Measures the calls of one test's `benchmark` fixture.

    We decide how long to sample a call: pytest-benchmark's `min_rounds`, `max_time`, `timer` and so on belong
    to its loop, which does not run. That of `pedantic` runs, since it promises how often it calls.

    A call that puts nothing on the GPU, or in its simulator, is INVALID if the test is marked. Under
    `--gpukern-all` alone it is left to pytest-benchmark, after a few untimed calls.

    Without a GPU the target is called once, or the test skipped, unless a timer of the host was asked for.
    """

    def __init__(self, item: pytest.Item, fixture: Any) -> None:
        self._item = item
        self._fixture = fixture
        self._is_marked = item.get_closest_marker(MARKER) is not None
        self._test = new_test(item)
        self._test.begin()
        self._measures = self._test.environment.gpu.has_gpu or self._test.context.times_host
        self._hand_back = interop.hand_over(fixture, self.call, self.pedantic, measures=self._measures)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Measures `function`; returns what a call after measuring returned, as pytest-benchmark does."""
        __tracebackhide__ = True
        try:
            return self._measure(CallTarget.repeated(function, args, kwargs))
        except NothingLaunched as reason:
            self._leave(reason)
            run, _ = self._hand_back()
        finally:
            self._give_stats()
        return run(function, *args, **kwargs)

    def pedantic(self, target: Callable[..., Any], **asked: Any) -> Any:
        """Checks and times the calls that pytest-benchmark's own loop makes; returns what that returns."""
        __tracebackhide__ = True
        fixture, returned = self._fixture, None
        _, own = self._hand_back()
        fixture.disabled = fixture.disabled and not self._measures

        def loop(around: Callable[..., Any]) -> None:
            nonlocal returned

            def once(*args: Any, **kwargs: Any) -> Any:
                return around(lambda: (0.0, target(*args, **kwargs)), args, kwargs)[1]

            interop.each_timed(fixture, around)
            returned = own(once if fixture.disabled else target, **asked)

        list_again = interop.unlist(fixture, self._item.config)
        try:
            self._measure(CallTarget.in_loop(target, Loop(loop, asked)))
        except TimerUnavailable as reason:
            if self._is_marked and isinstance(reason, NothingLaunched):
                pytest.fail(f"INVALID: {reason}; {HOST_REMEDY}", pytrace=False)
            list_again()
            self._leave(reason)
        else:
            self._give_stats()
        return returned

    def listed(self) -> JsonDict | None:
        """Returns how pytest-benchmark lists the test, as plain JSON; None if nothing was measured."""
        result, stats = self._test.result, self._fixture.stats
        return interop.listed_as(stats) if result and result.measurements and stats is not None else None

    def _measure(self, target: CallTarget) -> Any:
        """Measures a call; returns what one after measuring returned."""
        __tracebackhide__ = True
        leaves = not self._is_marked
        target = dataclasses.replace(target, called_after=True, leaves_host_calls=leaves, runs_once=True)
        return self._test.measure_call(target).last

    def _leave(self, reason: TimerUnavailable) -> None:
        if not self._is_marked:  # else its calls were checked
            self._test.result = None
        _warn(self._item, f"{reason}; it is left to pytest-benchmark")

    def _give_stats(self) -> None:
        """Puts on the fixture what pytest-benchmark leaves there, even if the call after measuring failed.

        If nothing was measured, it holds the time of the call that was made, for the test to read.
        """
        result = self._test.result
        if result is None:
            return
        if not result.measurements:
            if self._fixture.stats is None:
                interop.give_time_of_a_call(self._fixture, result.first_call_ns)
            return
        ignored = map(Note, _ignored(self._item))
        self._test.result = structs.replace(result, notes=(*result.notes, *ignored))
        self._fixture.stats = interop.metadata_of(self._fixture, result.measurements[0])


def unlist_simulated(item: Any, value: Any) -> None:
    """Keeps the times of a `benchmark` fixture out of all lists if its calls run in the simulator."""
    simulates = isinstance(item, pytest.Item) and environment_of(item.config).gpu.simulated.active
    if not (simulates and interop.is_its_fixture(value)):
        return

    def around(calls: Callable[[], Any], *_: Any) -> Any:
        made = SimulatedLaunches.made
        timed = calls()
        if SimulatedLaunches.made != made:
            interop.unlist(value, item.config)
        return timed

    interop.each_timed(value, around)


def take_over(item: Any, value: Any) -> None:
    """Measures with our timers what `item` hands to `value`, the `benchmark` fixture just made for it."""
    if not _is_chosen(item) or attempt_at(item).taken_over or interop.switched_off(item.config):
        return
    if environment_of(item.config).gpu.device is None and item.get_closest_marker(MARKER) is None:
        return  # without GPU and simulator an unmarked test is not ours
    if interop.is_its_fixture(value):
        attempt_at(item).taken_over = TakenOver(item, value)


def is_taken_over(item: pytest.Item) -> bool:
    return _is_chosen(item) and _uses(item, "benchmark") and not interop.switched_off(item.config)


def warn_if_not_taken_over(item: pytest.Item) -> None:
    """Warns after set-up if a test asks for its `benchmark` to be measured, and that cannot be."""
    value = getattr(item, "funcargs", {}).get("benchmark")  # None under --setup-plan
    if not _asks(item) or value is None or attempt_at(item).taken_over:
        return
    kind = type(value)
    if _uses(item, "gpu_benchmark"):
        reason = "its `benchmark` is timed by pytest-benchmark, since it uses `gpu_benchmark` too; drop one"
    elif interop.switched_off(item.config) and kind.__module__.startswith("pytest_benchmark."):
        reason = "--benchmark-disable runs it once; --benchmark-enable lets it be measured"
    else:
        reason = (
            f"its `benchmark` is a {kind.__module__}.{kind.__qualname__}, but only the fixture of "
            "pytest-benchmark 5.3 is supported; use the `gpu_benchmark` fixture"
        )
    _warn(item, reason)


def _warn(item: pytest.Item, reason: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always", GpukernWarning)  # a warning even if others are made errors
        item.warn(GpukernWarning(f"not measured on the GPU: {reason}"))


def _is_chosen(item: Any) -> bool:
    """Returns whether a test asks for its `benchmark` to be measured here, and does not use ours."""
    return isinstance(item, pytest.Item) and _asks(item) and not _uses(item, "gpu_benchmark")


def _asks(item: pytest.Item) -> bool:
    settings = settings_of(item.config)
    measures = settings.benchmark or bool(settings.code)
    return measures and (settings.measure_all or item.get_closest_marker(MARKER) is not None)


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _ignored(item: pytest.Item) -> Iterator[str]:
    """Yields which of the user's wishes to pytest-benchmark have no effect here."""
    mark = item.get_closest_marker("benchmark")
    names = [name for name in (mark.kwargs if mark is not None else ()) if name != "group"]
    if names:
        yield f"pytest.mark.benchmark({', '.join(names)}) has no effect: pytest-benchmark's loop does not run"
    if item.config.getoption("benchmark_cprofile", default=None):
        yield "--benchmark-cprofile: tests measured on the GPU are not profiled"
