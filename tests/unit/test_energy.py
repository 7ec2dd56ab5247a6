"""Energy of a call, with a device that draws what it is told."""

from types import SimpleNamespace

import pytest
from fakes import FakeEnvironment, case_of, measuring, right, run

from pytest_gpukern import scopes
from pytest_gpukern.device import DeviceState
from pytest_gpukern.energy import energy_of_a_call_mj
from pytest_gpukern.measure import Repeated

WATTS = 400.0


class Board:
    """Calls take `call_s` of the device and `launch_s` of the host; the counter moves every 0.1 s."""

    def __init__(self, call_s, launch_s=0.0, *, counts=True):
        self.call_s, self.launch_s, self.counts = call_s, launch_s, counts
        self.now = 0.0
        self.ends = 0.0
        self.calls = 0

    def call(self):
        self.now += self.launch_s
        self.ends = max(self.now, self.ends) + self.call_s
        self.calls += 1

    def synchronize(self):
        self.now = max(self.now, self.ends)

    def state(self):
        moved = int(self.now / 0.1) * 0.1
        return DeviceState(
            at_ns=int(self.now * 1e9), energy_mj=int(1e3 * WATTS * moved) if self.counts else None
        )

    def energy(self):
        return energy_of_a_call_mj(
            Repeated(self.call),
            self.state,
            self.synchronize,
            call_ns=self.call_s * 1e9,
            clock=lambda: self.now,
        )


@pytest.mark.parametrize("call_s", [1e-3, 0.04, 0.7])
def test_a_call_draws_what_the_board_does_while_it_runs(call_s):
    assert Board(call_s).energy() == pytest.approx(1e3 * WATTS * call_s, rel=0.1)


def test_calls_go_on_for_more_than_a_second():
    board = Board(1e-3, 1e-5)
    board.energy()
    assert 1200 <= board.calls <= 1300


def test_a_call_shorter_than_its_launch_has_no_energy_of_its_own():
    assert Board(2e-6, 1e-5).energy() is None


def test_a_device_without_a_counter_has_none():
    assert Board(1e-3, counts=False).energy() is None


def test_it_is_told_only_where_it_was_asked_for(gpu, timer, monkeypatch):
    monkeypatch.setattr(scopes, "energy_of_a_call_mj", lambda *args, **kwargs: 12.5)
    monkeypatch.setattr(scopes, "BatchWatch", lambda *args, **kwargs: None)
    found = []
    for energy in (False, True):
        environment = FakeEnvironment(gpu, settings=measuring(energy=energy))
        environment.instruments = SimpleNamespace(states=SimpleNamespace(state=None))
        found.append(run(case_of(right), environment).measurements[0].energy_mj)
    assert found == [None, 12.5]
