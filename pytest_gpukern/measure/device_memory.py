"""Tells the device memory that libraries gave out around a test: before it, at most, and after its teardown.

Only bytes that libraries account for are counted: arrays that are alive. What the driver says of the
device's use also holds modules, handles and other processes. Only libraries that a test has imported are
asked.
"""

from __future__ import annotations

import dataclasses
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.memory_accounts import accounts, synchronize
from pytest_gpukern.measure.observers import Look, Observation, Observer, SeenInTest
from pytest_gpukern.values.result import DeviceMemory, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpukern.measure.observers import Bench, Call
    from pytest_gpukern.timers.timer import Batch, Timer
    from pytest_gpukern.values.result import JsonDict, Result

MEMORY = "memory"
"""Kind of the finding, and what `--gpukern-gate-on` calls it."""

LEAST_KEPT_BYTES = 2**20
"""Arrays that are smaller together are no leak worth a line: a table of constants, say."""


class MemoryObserver(Observer):
    """Follows what libraries have given out through each test that measures on a GPU."""

    def __init__(self, name: str, bench: Bench, collect: Callable[[], object] = gc.collect) -> None:
        super().__init__(name, bench)
        self._collect = collect
        self._before: int | None = None
        self._peak = 0

    def begin_test(self) -> None:
        """Notes what is alive before a test, caches given back."""
        if not self.bench.measures:
            return
        with self._giving_up_on_errors():
            before = _alive_once_idle()
            for account in accounts():
                account.reset_peak()
            self._before = self._peak = before

    def observe(self, call: Call, timer: Timer, *, beside: bool) -> Observation | None:  # noqa: ARG002
        """Looks behind each batch, where a test is followed."""
        return _Batches(self) if call.on_gpu and self._before is not None else None

    def look(self) -> None:
        """Notes what is alive now, where that is the most so far."""
        if self._before is not None:
            with self._giving_up_on_errors():
                self._peak = max(self._peak, sum(account.live_bytes() for account in accounts()))

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest | None:
        """Says what the test had alive, and finds what it keeps: a failure's traceback is not its fault."""
        before, self._before = self._before, None
        with self._giving_up_on_errors():
            return None if before is None else self._seen(before, passed=passed, let_go=let_go)
        return None

    def _seen(self, before: int, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest:
        self._peak = max(self._peak, sum(max(each.peak_bytes(), each.live_bytes()) for each in accounts()))
        after = _alive_once_idle()
        if passed:
            for release in (let_go, self._collect):
                if after - before < LEAST_KEPT_BYTES:
                    break
                release()
                after = _alive_once_idle()
        kept = after - before if passed and after - before >= LEAST_KEPT_BYTES else 0
        figures = DeviceMemory(before, max(self._peak, before, after), after, kept)
        text = (
            f"the test leaves {kept / 2**20:.4g} MiB of device memory allocated after its teardown: "
            "something that outlives the test still refers to it, such as a global or a cache"
        )
        return SeenInTest(dataclasses.asdict(figures), Finding(MEMORY, text) if kept else None)

    @contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        """Follows a test no further once a library cannot be asked, as in a context of the test's own."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever a library raises there; the test itself is not at fault
            self._before = None

    @classmethod
    def add_to(cls, result: Result, name: str, values: JsonDict) -> Result:  # noqa: ARG003
        """Puts the figures where reports and the run file have them."""
        return dataclasses.replace(result, memory=DeviceMemory(**values))


class _Batches(Observation):
    def __init__(self, observer: MemoryObserver) -> None:
        self._observer = observer

    def after(self, batch: Batch, *, last: bool) -> Look:  # noqa: ARG002
        self._observer.look()
        return Look()


def _alive_once_idle() -> int:
    """Bytes alive once the device is idle, since freeing may be queued, and caches were given back."""
    synchronize()
    found = accounts()
    for account in found:
        account.release()
    return sum(account.live_bytes() for account in found)
