"""Observes what may slow down a card besides its clocks: memory errors, PCIe link, limits; once a test.

`findings/cards.py` compares the cards of a host or a fleet by it. Reports of a run leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.measure.observers import OBSERVERS, Observation, ObservedCall, Observer, SeenInTest
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Value

CARD = "card"


class CardObserver(Observer):
    """Asks NVML about the card when a test that timed something there has ended.

    It asks at once: to save power, an idle card may soon lower its PCIe link.
    """

    _limited_ns: Mapping[str, int] | None = None
    _timed = False

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        instruments = self.bench.instruments if call.on_gpu else None
        self._timed = self._timed or instruments is not None
        if self._limited_ns is None and instruments is not None:
            self._limited_ns = instruments.state().limited_ns
        return None

    def end_test(self, *, passed: bool, let_go: Callable[[], object]) -> SeenInTest | None:  # noqa: ARG002
        timed, self._timed = self._timed, False
        instruments, before = self.bench.instruments if timed else None, self._limited_ns or {}
        if instruments is None:
            return None
        try:
            setup, link, limits = instruments.states.setup()
            after = self._limited_ns = instruments.state().limited_ns
        except DeviceError:  # the next test reports it
            return None
        values: dict[str, Value] = {"power_limit_w": limits.power_w}
        values |= {f"pcie.{name}": value for name, value in link.items()}
        limited_s = {name: (after[name] - before[name]) / 1e9 for name in after if name in before}
        values |= {f"limited_s.{name}": seconds for name, seconds in limited_s.items()}
        values |= {name: value for name, value in vars(setup).items() if name in OBSERVERS[CARD].figures}
        return SeenInTest(values)
