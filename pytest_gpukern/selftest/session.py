"""Takes the readings of one session, of the timers or for the gate, in the process that calls it.

Order matters. The other tools come first: once CUPTI is attached to the process, it slows the API calls in
their numbers. Only NVBench comes last: its numbers contain no API call, and its end may destroy the context
that everything uses. So a session is saved before NVBench runs, and again after it.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.gpu.runtime import runtime
from pytest_gpukern.gpu.simulator.switch import SimulatorState
from pytest_gpukern.measure.device_clocks import DeviceClocks
from pytest_gpukern.measure.measure import Repeated, measure, rule_for, warm_up
from pytest_gpukern.measure.observers import ObservedCall
from pytest_gpukern.run.case_subject import CaseSubject, recheck
from pytest_gpukern.run.environment import Environment
from pytest_gpukern.run.scopes import measure_scopes
from pytest_gpukern.run.spine import Found, NotRunError, SubjectContext
from pytest_gpukern.selftest.gate_kernels import GateKernels, gate_cases, in_session_order
from pytest_gpukern.selftest.kernels import SpinningKernel, launch_elsewhere, selftest_cases
from pytest_gpukern.selftest.recording import (
    GateReading,
    GateSession,
    Node,
    NvbenchReading,
    Preparation,
    Reading,
    RivalReading,
    TimerSession,
    Wall,
)
from pytest_gpukern.selftest.rivals import NVBENCH, RIVALS, NvbenchTimes, in_one_line, run_nvbench, wall_clock
from pytest_gpukern.timers.timer import Iteration, TimerUnavailable, open_timer
from pytest_gpukern.values.marker import MarkerOptions
from pytest_gpukern.values.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpukern.check.launch import Prepared
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.selftest.gate_kernels import GateCase
    from pytest_gpukern.timers.timer import Timer

SPINS_NS = (500.0, 1_500.0, 5_000.0, 20_000.0, 100_000.0, 1_000_000.0, 10_000_000.0)
"""The others are compared with the first."""
NODE_SPINS_NS = (1_500.0, 20_000.0, 100_000.0)
_SPIN_SAMPLES = 50
_SPIN_BUDGET_NS = 5e7
_FEWEST_SPINS = 8
_NODE_SAMPLES = 50
CACHES = ("cold", "hot")
NVBENCH_BASES = ("fma 9600 trips, cold", "add 32 M f64, cold")
NVBENCH_SHARES = (0.0, 0.01, 0.05)
"""The gate's cases that NVBench measures; it takes half a second for each."""
_ENDED = "the process ended while it ran"


def session_environment(device: str | None = None) -> Environment:
    """Returns device, backends and settings of a run with `--gpu-benchmark` and no baseline.

    Args:
        device: which GPU, as in `--gpukern-device`; None for the first visible.
    """
    settings = Settings(benchmark=True, asked=True, baseline="off", device=device)
    return Environment(settings, SimulatorState(False, "off: a self-test is about a GPU"))


def _nvbench(launches: dict[str, Callable[[int], Callable[[], Any]]]) -> dict[str, NvbenchTimes | str]:
    """Returns NVBench's times of each launch or why there are none; under "" why there are none at all."""
    missing = NVBENCH.missing()
    if missing is not None:
        return {"": missing}
    try:
        return run_nvbench(launches)
    except Exception as error:  # noqa: BLE001 - another project's, and its row says so
        return {"": in_one_line(error)}


# the timers


@dataclass
class Ready:
    """Holds a kernel that was verified and can be timed."""

    name: str
    case: Case
    sets: list[Prepared]

    def launch_on(self, handle: int = 0) -> Callable[[], Any]:
        """Returns the launch on another tool's stream."""
        return launch_elsewhere(self.case, self.sets[0].workspace.arrays, handle)

    def current(self) -> AbstractContextManager[Any]:
        """Silences Numba's advice on small grids; CuPy stays on its own current stream."""
        return self.sets[0].backend.current() if self.case.variant.backend == "numba" else nullcontext()


def run_timer_session(*, rivals: bool, nvbench: bool, save: Callable[[TimerSession], None]) -> None:
    """Takes all readings of the timers on the pinned device, and saves them.

    Args:
        rivals: whether other tools measure too.
        nvbench: whether NVBench does.
        save: is given the session so far, twice if NVBench may still end the process.

    Raises:
        DeviceError: there is no device, or another process holds its lock.
    """
    started = time.perf_counter()
    environment = session_environment()
    with environment.gpu.exclusive(), ExitStack() as kept:
        kept.callback(environment.gpu.close)
        preparations: dict[str, Preparation] = {}
        ready: list[Ready] = []
        for name, case in selftest_cases().items():
            prepared, preparations[name] = _prepared(name, case, environment, kept)
            ready += [prepared] if prepared else []
        session = TimerSession(rivals=tuple(_by_rivals(ready)) if rivals else ())
        session = _timers_truth(session, ready, environment)
        session = _measured(session, ready, environment, preparations)
        session = dataclasses.replace(session, elapsed_s=time.perf_counter() - started)
        if nvbench:
            ours = session.rivals
            save(dataclasses.replace(session, rivals=(*ours, _by_nvbench("", _ENDED))))
            found = _nvbench({each.name: each.launch_on for each in ready})
            rivals_too = (*ours, *itertools.starmap(_by_nvbench, found.items()))
            elapsed_s = time.perf_counter() - started
            session = dataclasses.replace(session, rivals=rivals_too, elapsed_s=elapsed_s)
        save(session)


def _by_nvbench(kernel: str, found: NvbenchTimes | str) -> RivalReading:
    if isinstance(found, str):
        return RivalReading(NVBENCH.name, kernel, NVBENCH.cache, problem=found)
    return RivalReading(NVBENCH.name, kernel, NVBENCH.cache, found.median_ns)


def _prepared(
    name: str, case: Case, environment: Environment, kept: ExitStack
) -> tuple[Ready | None, Preparation]:
    """Returns a kernel with its buffer sets, verified as any case is; its arrays live until `kept` ends."""
    unusable = environment.libraries.unusable(case.variant.backend)
    if unusable is not None:
        return None, Preparation(name, problem=unusable)
    start = time.perf_counter()
    try:
        context = SubjectContext(environment, MarkerOptions(), case.id, Path(case.id))
        subject = CaseSubject(case, context)
        kept.enter_context(subject.prepare())
        subject.check(Found(subject.begin()))
    except (NotRunError, IncorrectError) as error:
        return None, Preparation(name, problem=str(error))
    seconds = time.perf_counter() - start
    first_call_ns = subject.sets[0].first_call_ns
    first_call_s = None if first_call_ns is None else first_call_ns / 1e9
    return Ready(name, case, subject.sets), Preparation(name, seconds, first_call_s)


def _by_rivals(ready: Sequence[Ready]) -> Iterator[RivalReading]:
    """Asks the tools in Python; no error of theirs ends the session."""
    for rival in RIVALS:
        missing = rival.missing()
        if missing is not None:
            yield RivalReading(rival.name, "", rival.cache, problem=missing)
            continue
        assert rival.measure is not None
        for each in ready:
            median_ns = problem = None
            try:
                with each.current():
                    median_ns = rival.measure(each.launch_on())
            except Exception as error:  # noqa: BLE001 - another project's, and its row says so
                problem = in_one_line(error)
            yield RivalReading(rival.name, each.name, rival.cache, median_ns, problem)


def _timers_truth(session: TimerSession, ready: Sequence[Ready], environment: Environment) -> TimerSession:
    """Makes the timers and has them read kernels of known time."""
    start = time.perf_counter()
    stream = runtime().stream
    name, fallback = _default_timer(stream)
    timers = {each: open_timer(each, stream) for each in dict.fromkeys((name, "event"))}
    environment.gpu.instruments, environment.gpu.peaks  # noqa: B018 - made on first use, once per process
    setup_s = time.perf_counter() - start
    default = timers[name]
    spinning = SpinningKernel(runtime())
    try:
        spinning.read(default, 1e6, _SPIN_SAMPLES)  # raises the clocks; the reading is dropped
        spins = []
        for ns in SPINS_NS:
            count = max(_FEWEST_SPINS, min(_SPIN_SAMPLES, int(_SPIN_BUDGET_NS / ns)))
            spins += [spinning.read(timer, ns, count) for timer in timers.values()]
        nodes = [_node(f"spin {ns:.0f}", spinning.call(ns), default, stream) for ns in NODE_SPINS_NS]
    finally:
        spinning.free()
    for each in ready:
        with each.sets[0].backend.current():
            # A fresh timer: after small grids, a timer keeps recording in the way that these need.
            nodes.append(_node(each.name, each.sets[0].launch, open_timer(default.name, stream), stream))
    return dataclasses.replace(
        session,
        default_timer=default.name,
        fallback=fallback,
        ticks_ns={name: timer.resolution_ns for name, timer in timers.items()},
        fixed_costs_ns={name: timer.fixed_cost_ns for name, timer in timers.items()},
        truth_step_ns=spinning.step_ns,
        setup_s=setup_s,
        spins=tuple(spins),
        nodes=tuple(nodes),
    )


def _default_timer(stream: Any) -> tuple[str, str | None]:
    """Returns the timer that `auto` chooses for kernels, and why that is not CUPTI."""
    try:
        open_timer("cupti", stream)
    except TimerUnavailable as reason:
        return "event", str(reason)
    return "cupti", None


def _node(name: str, call: Callable[[], Any], default: Timer, stream: Any) -> Node:
    """Measures the slope of graphs of a call, and the same call by the default timer again and again."""
    try:
        reading_ns = statistics.median(
            default.collect([Iteration(call, launches=1)] * _NODE_SAMPLES, cold=False).samples_ns
        )
        graph: Any = open_timer("graph", stream)
        return Node(name, float(graph.node_time_ns(Iteration(call))), reading_ns)
    except TimerUnavailable as reason:
        return Node(name, problem=str(reason))


def _measured(
    session: TimerSession,
    ready: Sequence[Ready],
    environment: Environment,
    preparations: dict[str, Preparation],
) -> TimerSession:
    """Measures the kernels as the plugin measures a case."""
    readings: list[Reading] = []
    walls: list[Wall] = []
    for each in ready:
        name = each.name
        try:
            for cache in CACHES:
                start = time.perf_counter()
                found = measure_scopes(each.sets, each.case.point, environment, MarkerOptions(cache=cache))
                walls.append(Wall(name, cache, time.perf_counter() - start))
                readings += [
                    Reading(
                        name,
                        cache,
                        one.timer,
                        one.summary.median_ns,
                        len(one.samples_ns),
                        one.invalid,
                        DeviceClocks.of(one).sm_mhz,
                        round(one.summary.high_ns - one.summary.low_ns, 2),
                    )
                    for one in found
                ]
            start = time.perf_counter()
            recheck(each.sets, each.case.point)
            recheck_s = time.perf_counter() - start
            preparations[name] = dataclasses.replace(preparations[name], recheck_s=recheck_s)
        except (IncorrectError, TimerUnavailable) as error:
            preparations[name] = dataclasses.replace(preparations[name], problem=str(error))
    return dataclasses.replace(
        session,
        readings=tuple(readings),
        walls=tuple(walls),
        preparations=tuple(preparations.values()),
    )


# the gate


def run_gate_session(
    number: int, *, rivals: bool, nvbench: bool, save: Callable[[GateSession], None]
) -> None:
    """Measures every case once, in the order of session `number`, as `run_timer_session` does kernels."""
    started = time.perf_counter()
    environment = session_environment()
    with environment.gpu.exclusive(), ExitStack() as kept:
        kept.callback(environment.gpu.close)
        without_cupy, faults = environment.libraries.unusable("cupy"), dict[str, str]()
        cases, left_out = in_session_order(gate_cases(), number), dict[str, str]()
        if without_cupy is not None:
            left_out = {case.id: without_cupy for case in cases if case.kernel == "gemm"}
            cases = [case for case in cases if case.id not in left_out]
        kernels = GateKernels(cases)
        kept.callback(kernels.close)
        cases = _right(cases, kernels, environment, faults)
        # The wall clock's calls follow each other, so each finds the cache as the one before left it.
        walls_ns = {}
        for case in cases if rivals else ():
            with _current(case, environment):
                walls_ns[case.id] = round(wall_clock(kernels.launch(case)), 1)
        session = GateSession(left_out=left_out, walls_ns=walls_ns)
        session = _by_default_timer(session, cases, kernels, environment, faults)
        _right(cases, kernels, environment, faults)
        session = dataclasses.replace(session, faults=faults, elapsed_s=time.perf_counter() - started)
        if nvbench:
            save(dataclasses.replace(session, rivals={NVBENCH.name: _ENDED}))
            session = _with_nvbench(session, cases, kernels)
            session = dataclasses.replace(session, elapsed_s=time.perf_counter() - started)
        save(session)


def _right(
    cases: Sequence[GateCase], kernels: GateKernels, environment: Environment, faults: dict[str, str]
) -> list[GateCase]:
    """Returns the cases with right results; what is wrong with others goes into `faults`."""
    for case in cases:
        with _current(case, environment):
            fault = kernels.fault(case)
        if fault is not None:
            faults[case.id] = fault
    return [case for case in cases if case.id not in faults]


def _current(case: GateCase, environment: Environment) -> AbstractContextManager[Any]:
    """Makes the timed stream CuPy's current one, on which it launches."""
    return environment.libraries.backend("cupy").current() if case.kernel == "gemm" else nullcontext()


def _by_default_timer(
    session: GateSession,
    cases: Sequence[GateCase],
    kernels: GateKernels,
    environment: Environment,
    faults: dict[str, str],
) -> GateSession:
    """Measures every case by the default timer, as `--gpu-benchmark` measures it."""
    default, fallback = _default_timer(kernels.stream)
    readings = []
    for case in cases:
        call = kernels.launch(case)
        try:
            with _current(case, environment):
                call_ns = warm_up(call, runtime().synchronize, compiled=True).settled_ns
                timer = open_timer(default, kernels.stream)
                found = measure(
                    Repeated(call),
                    timer,
                    scope="kernel",
                    cache=case.cache,
                    call_ns=call_ns,
                    rule=rule_for(call_ns),
                    observing=environment.gpu.observers.observe(ObservedCall("kernel", on_gpu=True), timer),
                )
        except TimerUnavailable as reason:
            faults[case.id] = str(reason)
            continue
        summary, clock = found.summary, DeviceClocks.of(found).sm_mhz
        readings.append(
            GateReading(
                case=case.id,
                median_ns=round(summary.median_ns, 2),
                low_ns=round(summary.low_ns, 2),
                high_ns=round(summary.high_ns, 2),
                samples=summary.n,
                sm_mhz=None if clock is None else float(clock),
                jitter_ns=round(found.jitter_ns, 2),
                invalid=found.invalid,
            )
        )
    return dataclasses.replace(session, default_timer=default, fallback=fallback, readings=tuple(readings))


def _with_nvbench(session: GateSession, cases: Sequence[GateCase], kernels: GateKernels) -> GateSession:
    """Returns the session with NVBench's readings, or with the reason why there are none."""

    def launch_on(case: GateCase) -> Callable[[int], Callable[[], Any]]:
        return lambda handle: kernels.on_handle(case, handle)

    chosen = {
        case.id: launch_on(case)
        for case in cases
        if (case.base or case.id) in NVBENCH_BASES and case.share in NVBENCH_SHARES
    }
    readings, problems = [], {}
    for name, found in _nvbench(chosen).items():
        if isinstance(found, NvbenchTimes) and found.mean_ns is not None and found.noise is not None:
            readings.append(NvbenchReading(name, round(found.mean_ns, 2), round(found.noise, 8)))
        else:
            why = found if isinstance(found, str) else "it reported no mean with its deviation"
            problems[f"{NVBENCH.name}, {name}" if name else NVBENCH.name] = why
    return dataclasses.replace(session, nvbench=tuple(readings), rivals=problems)
