"""Tests the energy of a call, on a device that draws a known power."""

from __future__ import annotations

import dataclasses
from collections import deque
from types import SimpleNamespace

import pytest
from fake_nvml import state
from fakes import FakeEnvironment, case_of, doubling, measuring, right, run

from pytest_gpukern import Output
from pytest_gpukern.gpu.nvml import DeviceState
from pytest_gpukern.measure import energy as energy_module
from pytest_gpukern.measure.energy import (
    COUNTER_STANDS,
    HOST_BOUND,
    NO_COUNTER,
    NOT_ASKED,
    OF_INVALID,
    OF_UPDATES,
    TOO_SHORT,
    Energy,
    energy_of_a_call,
    energy_per_call,
)
from pytest_gpukern.measure.measure import Repeated
from pytest_gpukern.measure.observers import Observers
from pytest_gpukern.run import subject
from pytest_gpukern.timers.timer import NothingLaunched

WATTS, IDLE_WATTS = 400.0, 80.0
QUEUE_ENTRIES = 1024


class Board:
    """A device whose calls take `call_s`, in `launches` kernels; the host launches each in `launch_s`.

    A launch waits where the launch queue is full, and the call for its own end where it `waits`. The counter
    moves every 0.1 s. A pause of the host comes every `hiccup_every` calls, for 1 ms.
    """

    def __init__(self, call_s, launch_s=0.0, *, launches=1, waits=False, hiccup_every=None, counts=True):
        self.call_s, self.launch_s, self.launches = call_s, launch_s, launches
        self.waits, self.hiccup_every, self.counts = waits, hiccup_every, counts
        self.now = self.ends = self.busy = 0.0
        self.calls = 0
        self.queue = deque()

    def call(self):
        self.calls += 1
        if self.hiccup_every and self.calls % self.hiccup_every == 0:
            self.now += 1e-3
        for _ in range(self.launches):
            self.now += self.launch_s
            if len(self.queue) >= QUEUE_ENTRIES:
                self.now = max(self.now, self.queue.popleft())
            self.ends = max(self.now, self.ends) + self.call_s / self.launches
            self.queue.append(self.ends)
        self.busy += self.call_s
        if self.waits:
            self.synchronize()

    def synchronize(self):
        self.now = max(self.now, self.ends)

    def mark(self):
        return Mark(self, self.ends)

    def state(self):
        drawn = IDLE_WATTS * self.now + (WATTS - IDLE_WATTS) * self.busy
        moved = int(self.now / 0.1) * 0.1 / self.now if self.now else 0.0
        return DeviceState(
            at_ns=int(self.now * 1e9), energy_mj=int(1e3 * drawn * moved) if self.counts else None
        )

    def energy(self, **arguments):
        return energy_of_a_call(
            Repeated(self.call),
            self.state,
            self.synchronize,
            self.mark,
            **{"call_ns": self.call_s * 1e9, **arguments},
            clock=lambda: self.now,
        )


@dataclasses.dataclass
class Mark:
    """A place in the queue, which the device reaches when all that was launched before has ended."""

    board: Board
    ends: float

    @property
    def is_done(self):
        return self.board.now >= self.ends

    def sync(self):
        self.board.now = max(self.board.now, self.ends)


@pytest.mark.parametrize("call_s", [2.5e-5, 3.6e-4, 1e-3, 0.04, 0.7])
def test_a_call_draws_what_the_board_does_while_it_runs(call_s):
    told = Board(call_s, 5e-6).energy()
    assert told.untold is None
    assert told.call_mj == pytest.approx(1e3 * WATTS * call_s, rel=0.1)
    assert told.power_w == pytest.approx(WATTS, rel=0.1)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.97])
def test_a_host_that_is_barely_faster_than_the_device_is_fast_enough(share):
    assert Board(1e-5, share * 1e-5).energy().call_mj == pytest.approx(1e3 * WATTS * 1e-5, rel=0.1)


@pytest.mark.parametrize("launch_s", [2.2e-6, 1e-5])
def test_a_call_shorter_than_its_launch_has_no_energy_of_its_own(launch_s):
    assert Board(2e-6, launch_s).energy() == Energy(untold=HOST_BOUND)
    assert Board(5e-3, 1e-5, waits=True).energy() == Energy(untold=HOST_BOUND), "it waits for the device"


@pytest.mark.parametrize("launches", [10, 100, 300])
def test_calls_that_fill_the_launch_queue_leave_no_device_waiting(launches):
    call_s = launches * 5e-6
    told = Board(call_s, 2e-6, launches=launches).energy()
    assert told.call_mj == pytest.approx(1e3 * WATTS * call_s, rel=0.1)


def test_a_host_that_pauses_now_and_then_is_fast_enough_and_one_that_does_often_is_not():
    assert Board(5e-5, 5e-6, hiccup_every=1000).energy().call_mj == pytest.approx(50e-3 * WATTS, rel=0.1)
    assert Board(5e-6, 4e-6, hiccup_every=50).energy().untold == HOST_BOUND


def test_a_device_without_a_counter_has_none_and_no_call_is_run_for_it():
    board = Board(1e-3, counts=False)
    assert board.energy() == Energy(untold=NO_COUNTER)
    assert board.calls == 0


# in a case

TOLD = Energy(12.5, 600.0)


@pytest.fixture
def told(gpu, timer, monkeypatch):
    """Returns the energies in a case's measurements; the call itself takes 12.5 mJ and 600 W."""
    monkeypatch.setattr(energy_module, "energy_of_a_call", lambda *args, **kwargs: TOLD)
    monkeypatch.setattr(Observers, "observe", lambda *args, **kwargs: [])
    gpu.timed_stream = SimpleNamespace(record=None)

    def run_with(*, asks=True, problem=None, **settings):
        environment = FakeEnvironment(gpu, settings=measuring(**{"energy": True, **settings}))
        if asks:
            environment.instruments = SimpleNamespace(states=SimpleNamespace(state=None))
        result = run(case_of(right, problem=problem), environment)
        return [Energy(each.energy_mj, each.mean_power_w, each.energy_untold) for each in result.measurements]

    return run_with


def test_energy_is_measured_only_if_asked_for(told):
    assert told(energy=False) == [Energy()]
    assert told() == [TOLD]


def test_energy_is_measured_in_the_kernel_scope_by_the_main_timer_only(told):
    assert told(scopes=("kernel", "transfer", "end_to_end")) == [TOLD, Energy(), Energy()]
    assert told(timer="auto") == [TOLD, Energy()]


def test_energy_that_cannot_be_asked_for_has_a_reason(told, timer):
    assert told(asks=False) == [Energy(untold=NOT_ASKED)]
    timer.suspicious = "work on another stream"
    assert told() == [Energy(untold=OF_INVALID)]


def test_a_call_that_updates_its_arrays_is_not_run_back_to_back(told):
    in_part = {"outputs": lambda n: {"out": Output(n, "float32", written=slice(None))}}
    assert told(problem=doubling(**in_part)) == [Energy(untold=OF_UPDATES)]


def test_a_call_that_launches_nothing_has_a_reason_too(told, monkeypatch, timer):
    def measured_by(by, wanted, **_):
        raise NothingLaunched("nothing came")

    monkeypatch.setattr(subject, "measured_by", measured_by)
    assert told() == [Energy(untold=OF_INVALID)]


# from two readings


def energy(
    seconds: float = 1.2,
    calls: int = 1000,
    starved_s: float = 0.0,
    **changes: object,
) -> Energy:
    after = state(1e3 * seconds, **({"energy_mj": 1_000_000 + 840_000} | changes))
    return energy_per_call(state(0), after, calls, starved_ns=1e9 * starved_s)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": 0.9, "calls": 750}, TOO_SHORT),
        ({"calls": 0}, TOO_SHORT),
        ({"energy_mj": None}, NO_COUNTER),
        ({"energy_mj": 1_000_000}, COUNTER_STANDS),
    ],
    ids=["too short for the counter", "no calls", "no counter", "a counter that stands"],
)
def test_energy_that_cannot_be_told_has_a_reason(changes: dict[str, object], reason: str) -> None:
    assert energy(**changes) == Energy(untold=reason)
