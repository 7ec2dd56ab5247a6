"""Reports the device memory that libraries gave out around a test: before, at most, and after its teardown.

We count only bytes that libraries account for, which are live arrays. The driver's own figure also contains
modules, handles and other processes. We ask only libraries that a test has imported.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_gpukern.gpu.memory_accounts import accounts
from pytest_gpukern.gpu.runtime import checked
from pytest_gpukern.measure.observers import Look, Observation, ObservedCall, Observer, SeenInTest
from pytest_gpukern.timers.timer import Batch, Timer
from pytest_gpukern.values.result import Finding

MEMORY = "memory"

LEAST_KEPT_BYTES = 2**20
"""Less is no leak worth reporting; it may be a table of constants."""


class MemoryObserver(Observer, Observation):
    """Follows the libraries' device memory through each test that measures on a GPU, and its batches."""

    _before: int | None = None
    _peak = 0

    def begin_test(self) -> None:
        if not self.bench.measures:
            return
        with self._giving_up_on_errors():
            before = _alive_once_idle()
            for account in accounts():
                account.reset_peak()
            self._before = self._peak = before

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        return self if call.on_gpu and self._before is not None else None

    def after(self, batch: Batch, *, last: bool) -> Look:  # noqa: ARG002
        if self._before is not None:
            with self._giving_up_on_errors():
                self._peak = max(self._peak, sum(account.live_bytes() for account in accounts()))
        return Look()

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest | None:
        before, self._before = self._before, None
        with self._giving_up_on_errors():
            if before is not None and accounts():
                return self._seen(before, passed=passed, let_go=let_go)
        return None

    def _seen(self, before: int, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest:
        peaks = (max(account.peak_bytes(), account.live_bytes()) for account in accounts())
        self._peak = max(self._peak, sum(peaks))
        after = _alive_once_idle()
        if passed:
            for release in (let_go, gc.collect):
                if after - before < LEAST_KEPT_BYTES:
                    break
                release()
                after = _alive_once_idle()
        kept = after - before if passed and after - before >= LEAST_KEPT_BYTES else 0
        figures = {
            "before_bytes": before,
            "peak_bytes": max(self._peak, before, after),
            "after_bytes": after,
            "kept_bytes": kept,
        }
        text = (
            f"the test leaves {kept / 2**20:.4g} MiB of device memory allocated after its teardown: "
            "something that outlives the test still refers to it, such as a global or a cache"
        )
        return SeenInTest(figures, Finding(MEMORY, text) if kept else None)

    @contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        """Stops following a test if a library cannot be asked, for example in the test's own context."""
        try:
            yield
        except Exception:  # noqa: BLE001 - any error of a library; the test itself is not at fault
            self._before = None


def _alive_once_idle() -> int:
    """Returns the bytes allocated after waiting for queued frees and freeing caches."""
    in_use = accounts()
    if in_use:
        checked("cuCtxSynchronize")
    for account in in_use:
        account.release()
    return sum(account.live_bytes() for account in in_use)
