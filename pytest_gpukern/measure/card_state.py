"""Observes what may slow down a card besides its clocks: memory errors, PCIe link, limits; once a test.

A host's cards, or those of a fleet, are compared by it (`findings/cards.py`). Reports of a run leave it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.nvml import Configuration, PcieLink
from pytest_gpukern.measure.observers import OBSERVERS, Observation, ObservedCall, Observer, SeenInTest
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Observations, Value

CARD = "card"
_LIMITED, _PCIE = "limited_s.", "pcie."


class CardObserver(Observer):
    """Asks NVML about the card when a test that timed something there has ended.

    That is at once: a card that idles may soon have another PCIe link.
    """

    _limited_ns: Mapping[str, int] | None = None
    _timed = False

    def observe(self, call: ObservedCall, timer: Timer, *, beside: bool) -> Observation | None:  # noqa: ARG002
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
        values |= {_PCIE + name: value for name, value in vars(link).items()}
        values |= {_LIMITED + name: (after[name] - before[name]) / 1e9 for name in after if name in before}
        values |= {name: value for name, value in vars(setup).items() if name in OBSERVERS[CARD].figures}
        return SeenInTest(values)


def setup_of(seen: Iterable[Observations]) -> tuple[Configuration, PcieLink, float | None, dict[str, float]]:
    """Returns what tests saw of a card: setup, link at its best, power limit in watts, and seconds by event.

    A run's file may come from anybody: what is no finite number or truth value is unknown.
    """
    setup: dict[str, float] = {}
    links, limited_s = [PcieLink()], dict[str, float]()
    for of_test in seen:
        known = {
            name: value
            for name, value in of_test.get(CARD, {}).items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        setup |= known
        links.append(PcieLink(*(known.get(_PCIE + item.name) for item in fields(PcieLink))))  # type: ignore[arg-type]
        for name, seconds in known.items():
            if name.startswith(_LIMITED):
                event = name.removeprefix(_LIMITED)
                limited_s[event] = limited_s.get(event, 0.0) + seconds
    of_setup = {item.name: setup[item.name] for item in fields(Configuration) if item.name in setup}
    best = max(links, key=lambda link: (link.generation or 0, link.width or 0))
    return Configuration(**of_setup), best, setup.get("power_limit_w"), limited_s  # type: ignore[arg-type]
