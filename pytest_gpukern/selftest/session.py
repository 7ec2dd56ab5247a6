"""The readings of one session, in the process that calls it: kernels of known time, ours, and other tools'.

Order matters. The other tools come first, before CUPTI is attached to the process, which would slow the API
calls in their numbers. NVBench alone comes last: its numbers hold no API call, and when it ends it may take
the context that everything lives in with it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.gpu.simulator.switch import SimulatorState
from pytest_gpukern.run.case_subject import CaseSubject, recheck
from pytest_gpukern.run.environment import Environment
from pytest_gpukern.run.scopes import measure_scopes
from pytest_gpukern.run.spine import Found, NotRunError
from pytest_gpukern.selftest.recording import Node, Preparation, Reading, RivalReading, Session, Spin, Wall
from pytest_gpukern.selftest.rivals import (
    CUPYX,
    DO_BENCH,
    NVBENCH,
    WALL_CLOCK,
    cupyx_benchmark,
    do_bench,
    nvbench,
    wall_clock,
)
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable, open_timer
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpukern.check.launch import Prepared
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.timers.timer import Timer

SPINS_NS = (500.0, 1_500.0, 5_000.0, 20_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
"""The first is what the others are compared with."""
NODE_SPINS_NS = (1_500.0, 20_000.0, 100_000.0)
_SPIN_SAMPLES = 50
_SPIN_BUDGET_NS = 5e7
_FEWEST_SPINS = 8
_NODE_SAMPLES = 50
CACHES = ("cold", "hot")


@dataclass
class Ready:
    """A kernel that was verified and can be timed."""

    name: str
    case: Case
    sets: list[Prepared]

    @property
    def arrays(self) -> dict[str, Any]:
        """Of the first set, in the backend's own type."""
        return self.sets[0].workspace.arrays


def run_session(*, rivals: bool, save: Callable[[Session], None]) -> None:
    """Takes all readings of one session on the pinned device, and saves them.

    Args:
        rivals: whether other tools are measured too.
        save: is given the session so far: twice where something may still end the process.

    Raises:
        DeviceError: there is no device, or another process holds its lock.
    """
    from pytest_gpukern.selftest.kernels import selftest_cases

    started = time.perf_counter()
    environment = session_environment()
    with environment.exclusive(), ExitStack() as kept:
        kept.callback(environment.close)
        preparations: dict[str, Preparation] = {}
        ready: list[Ready] = []
        for name, case in selftest_cases().items():
            prepared, preparations[name] = _prepared(name, case, environment, kept)
            ready += [prepared] if prepared else []
        session = Session(rivals=tuple(_rivals_before(ready)) if rivals else ())
        session = _timers_truth(session, ready, environment)
        session = _measured(session, ready, environment, preparations)
        session = dataclasses.replace(session, elapsed_s=time.perf_counter() - started)
        if not rivals:
            save(session)
            return
        lost = RivalReading(NVBENCH.name, "", NVBENCH.cache, problem="the process ended while it ran")
        save(dataclasses.replace(session, rivals=(*session.rivals, lost)))
        others = (*session.rivals, *_nvbench_readings(ready))
        save(dataclasses.replace(session, rivals=others, elapsed_s=time.perf_counter() - started))


def session_environment(device: str | None = None) -> Environment:
    """Device, backends and settings of a session: those of a run with `--gpu-benchmark` and no baseline.

    Args:
        device: which GPU, as in `--gpukern-device`; None for the first visible.
    """
    settings = Settings(benchmark=True, asked=True, baseline="off", device=device)
    return Environment(settings, SimulatorState(False, "off: a self-test is about a GPU"))


def _prepared(
    name: str, case: Case, environment: Environment, kept: ExitStack
) -> tuple[Ready | None, Preparation]:
    """A kernel with its buffer sets, verified as any case is; its arrays live until `kept` ends."""
    unusable = environment.unusable(case.variant.backend)
    if unusable is not None:
        return None, Preparation(name, problem=unusable)
    start = time.perf_counter()
    try:
        subject = CaseSubject(case, environment, MarkerOptions(), case.id, Path(case.id))
        kept.enter_context(subject.prepare())
        subject.check(Found(subject.begin()))
    except (NotRunError, IncorrectError) as error:
        return None, Preparation(name, problem=str(error))
    seconds = time.perf_counter() - start
    first_call_ns = subject.sets[0].first_call_ns
    return Ready(name, case, subject.sets), Preparation(
        name, seconds=seconds, first_call_s=None if first_call_ns is None else first_call_ns / 1e9
    )


# truth


def _timers_truth(session: Session, ready: list[Ready], environment: Environment) -> Session:
    """Makes the timers and has them read kernels of known time."""
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.selftest.kernels import SpinningKernel

    start = time.perf_counter()
    stream = runtime().stream
    fallback = None
    timers: dict[str, Timer] = {}
    try:
        timers["cupti"] = open_timer("cupti", stream)
    except TimerUnavailable as reason:
        fallback = str(reason)
    timers["event"] = open_timer("event", stream)
    environment.instruments, environment.peaks  # noqa: B018 - made on first use, once a process
    setup_s = time.perf_counter() - start
    default = next(iter(timers.values()))
    spinning = SpinningKernel(runtime())
    try:
        spinning.read(default, 1e6, _SPIN_SAMPLES)  # clocks have risen; nothing is kept of it
        spins = tuple(_spins(spinning, timers))
        nodes = [_node(f"spin {ns:.0f}", spinning.call(ns), default, stream) for ns in NODE_SPINS_NS]
    finally:
        spinning.free()
    for each in ready:
        with each.sets[0].backend.current():
            # A timer of its own: one that has seen small grids goes on recording as those need it.
            nodes.append(_node(each.name, each.sets[0].launch, open_timer(default.name, stream), stream))
    return dataclasses.replace(
        session,
        default_timer=default.name,
        fallback=fallback,
        ticks_ns={name: timer.resolution_ns for name, timer in timers.items()},
        fixed_costs_ns={name: timer.fixed_cost_ns for name, timer in timers.items()},
        truth_step_ns=spinning.step_ns,
        setup_s=setup_s,
        spins=spins,
        nodes=tuple(nodes),
    )


def _spins(spinning: Any, timers: dict[str, Timer]) -> Iterator[Spin]:
    for ns in SPINS_NS:
        count = max(_FEWEST_SPINS, min(_SPIN_SAMPLES, int(_SPIN_BUDGET_NS / ns)))
        for name, timer in timers.items():
            found = spinning.read(timer, ns, count)
            yield Spin(ns, name, found.own_ns, found.reading_ns, found.beyond_ns)


def _node(name: str, call: Callable[[], Any], default: Timer, stream: Any) -> Node:
    """The slope of graphs of a call, and the default timer's reading of the same call again and again."""
    try:
        reading_ns = statistics.median(
            default.collect([Iteration(call, launches=1)] * _NODE_SAMPLES, cold=False).samples_ns
        )
        graph: Any = open_timer("graph", stream)
        return Node(name, float(graph.node_time_ns(Iteration(call))), reading_ns)
    except TimerUnavailable as reason:
        return Node(name, problem=str(reason))


# the kernels, as the plugin measures a case


def _measured(
    session: Session, ready: list[Ready], environment: Environment, preparations: dict[str, Preparation]
) -> Session:
    readings: list[Reading] = []
    walls: list[Wall] = []
    for each in ready:
        try:
            for cache in CACHES:
                start = time.perf_counter()
                found = measure_scopes(each.sets, each.case.point, environment, MarkerOptions(cache=cache))
                walls.append(Wall(each.name, cache, time.perf_counter() - start))
                readings += [
                    Reading(
                        each.name,
                        cache,
                        measurement.timer,
                        measurement.summary.median_ns,
                        len(measurement.samples_ns),
                        measurement.invalid,
                    )
                    for measurement in found
                ]
            start = time.perf_counter()
            recheck(each.sets, each.case.point)
            change: dict[str, Any] = {"recheck_s": time.perf_counter() - start}
        except (IncorrectError, TimerUnavailable) as error:
            change = {"problem": str(error)}
        preparations[each.name] = dataclasses.replace(preparations[each.name], **change)
    return dataclasses.replace(
        session,
        readings=tuple(readings),
        walls=tuple(walls),
        preparations=tuple(preparations.values()),
    )


# the others


def _rivals_before(ready: list[Ready]) -> Iterator[RivalReading]:
    """What tools of Python's own read; none of them ends the session."""
    from pytest_gpukern.selftest.kernels import launch_elsewhere, synchronize

    tools: dict[Any, Callable[[Callable[[], Any]], float]] = {
        WALL_CLOCK: lambda launch: wall_clock(launch, synchronize),
        CUPYX: cupyx_benchmark,
        DO_BENCH: do_bench,
    }
    for rival, measure in tools.items():
        missing = rival.missing()
        if missing is not None:
            yield RivalReading(rival.name, "", rival.cache, problem=missing)
            continue
        for each in ready:
            median_ns = problem = None
            try:
                with _quiet(each):
                    median_ns = measure(launch_elsewhere(each.case, each.arrays))
            except Exception as error:  # noqa: BLE001 - another project's, and its row says so
                problem = _in_one_line(error)
            yield RivalReading(rival.name, each.name, rival.cache, median_ns, problem)


def _nvbench_readings(ready: list[Ready]) -> list[RivalReading]:
    from pytest_gpukern.selftest.kernels import launch_elsewhere

    missing = NVBENCH.missing()
    if missing is not None:
        return [RivalReading(NVBENCH.name, "", NVBENCH.cache, problem=missing)]

    def launch_on(each: Ready) -> Callable[[int], Callable[[], Any]]:
        return lambda handle: launch_elsewhere(each.case, each.arrays, handle)

    try:
        found = nvbench({each.name: launch_on(each) for each in ready})
    except Exception as error:  # noqa: BLE001 - as above
        return [RivalReading(NVBENCH.name, "", NVBENCH.cache, problem=_in_one_line(error))]
    return [
        RivalReading(NVBENCH.name, name, NVBENCH.cache, problem=value)
        if isinstance(value, str)
        else RivalReading(NVBENCH.name, name, NVBENCH.cache, value)
        for name, value in found.items()
    ]


@contextmanager
def _quiet(each: Ready) -> Iterator[None]:
    """Numba's advice on small grids is silenced; CuPy stays on its own current stream."""
    if each.case.variant.backend != "numba":
        yield
        return
    with each.sets[0].backend.current():
        yield


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
