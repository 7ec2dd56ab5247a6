"""One session of `gpukern selftest --gate`, in the process that calls it.

Order matters as in `session`: the wall clock comes before CUPTI is attached, NVBench last.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

from pytest_gpukern.measure.measure import Repeated, measure, rule_for, warm_up
from pytest_gpukern.measure.watch import BatchWatch
from pytest_gpukern.selftest.gate_kernels import gate_cases, in_session_order
from pytest_gpukern.selftest.gate_recording import GateReading, GateSession, NvbenchReading
from pytest_gpukern.selftest.rivals import NVBENCH, nvbench_benchmarks, nvbench_mean, wall_clock
from pytest_gpukern.selftest.session import session_environment
from pytest_gpukern.timers.timer import NothingLaunched, TimerUnavailable, open_timer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.selftest.gate_kernels import GateCase, GateKernels
    from pytest_gpukern.timers.timer import Timer
    from pytest_gpukern.values.result import Measurement

NVBENCH_BASES = ("fma 9600 trips, cold", "add 32 M f64, cold")
NVBENCH_SHARES = (0.0, 0.01, 0.05)
"""A measurement by NVBench takes half a second, so that only these cases are given to it."""


def run_gate_session(number: int, *, walls: bool, nvbench: bool, save: Callable[[GateSession], None]) -> None:
    """Measures every case once on the pinned device, and saves what was found.

    Args:
        number: of the session, from 0; turns the order of planted cases.
        walls: whether the wall clock measures them too.
        nvbench: whether NVBench measures some of them too.
        save: is given the session so far: twice where something may still end the process.

    Raises:
        DeviceError: there is no device, or another process holds its lock.
    """
    from pytest_gpukern.selftest.gate_kernels import GateKernels

    started = time.perf_counter()
    environment = session_environment()
    with environment.exclusive(), ExitStack() as kept:
        kept.callback(environment.close)
        left_out, faults = _left_out(environment), dict[str, str]()
        cases = [case for case in in_session_order(gate_cases(), number) if case.id not in left_out]
        kernels = GateKernels(cases)
        kept.callback(kernels.close)
        cases = _right(cases, kernels, environment, faults)
        session = GateSession(left_out=left_out)
        if walls:
            session = dataclasses.replace(session, walls_ns=_walls(cases, kernels, environment))
        session = _measured(session, cases, kernels, environment, faults)
        _right(cases, kernels, environment, faults)
        session = dataclasses.replace(session, faults=faults, elapsed_s=time.perf_counter() - started)
        if not nvbench:
            save(session)
            return
        lost = {NVBENCH.name: "the process ended while it ran"}
        save(dataclasses.replace(session, rivals=lost))
        session = _with_nvbench(session, cases, kernels)
        save(dataclasses.replace(session, elapsed_s=time.perf_counter() - started))


def _left_out(environment: Environment) -> dict[str, str]:
    """Cases that cannot run here, with the reason."""
    unusable = environment.unusable("cupy")
    return {} if unusable is None else {case.id: unusable for case in gate_cases() if case.kernel == "gemm"}


def _right(
    cases: Sequence[GateCase], kernels: GateKernels, environment: Environment, faults: dict[str, str]
) -> list[GateCase]:
    """The cases whose results are right; what is wrong with others goes into `faults`."""
    for case in cases:
        with _current(case, environment):
            fault = kernels.fault(case)
        if fault is not None:
            faults[case.id] = fault
    return [case for case in cases if case.id not in faults]


def _current(case: GateCase, environment: Environment) -> AbstractContextManager[Any]:
    """CuPy launches on its current stream, which has to be the timed one."""
    return environment.backend("cupy").current() if case.kernel == "gemm" else nullcontext()


def _walls(cases: Sequence[GateCase], kernels: GateKernels, environment: Environment) -> dict[str, float]:
    """Wall times of calls one after another, which leave the cache as warm as they do."""
    from pytest_gpukern.selftest.kernels import synchronize

    found = {}
    for case in cases:
        with _current(case, environment):
            found[case.id] = round(wall_clock(kernels.launch(case), synchronize), 1)
    return found


def _measured(
    session: GateSession,
    cases: Sequence[GateCase],
    kernels: GateKernels,
    environment: Environment,
    faults: dict[str, str],
) -> GateSession:
    """Every case by the main timer, as `--gpu-benchmark` measures it."""
    default, fallback = "cupti", None
    try:
        open_timer("cupti", kernels.stream)
    except TimerUnavailable as reason:
        default, fallback = "event", str(reason)
    readings = []
    for case in cases:
        try:
            with _current(case, environment):
                found = _by_main_timer(case, kernels, environment, default)
        except TimerUnavailable as reason:
            faults[case.id] = str(reason)
            continue
        readings.append(_reading(case, found, default))
    return dataclasses.replace(session, default_timer=default, fallback=fallback, readings=tuple(readings))


def _by_main_timer(
    case: GateCase, kernels: GateKernels, environment: Environment, default: str
) -> Measurement:
    from pytest_gpukern.selftest.kernels import synchronize

    call = kernels.launch(case)
    call_ns = warm_up(call, synchronize, compiled=True).settled_ns

    def by(timer: Timer) -> Measurement:
        return measure(
            Repeated(call),
            timer,
            scope="kernel",
            cache=case.cache,
            call_ns=call_ns,
            rule=rule_for(call_ns),
            watch=BatchWatch(environment.instruments, device_timed=True),
        )

    try:
        return by(open_timer(default, kernels.stream))
    except NothingLaunched:
        raise  # events would time each other
    except TimerUnavailable:
        if default == "event":
            raise
        return by(open_timer("event", kernels.stream))


def _reading(case: GateCase, found: Measurement, default: str) -> GateReading:
    summary, clock = found.summary, found.state.get("sm_mhz")
    return GateReading(
        case=case.id,
        median_ns=round(summary.median_ns, 2),
        low_ns=round(summary.low_ns, 2),
        high_ns=round(summary.high_ns, 2),
        samples=summary.n,
        sm_mhz=None if clock is None else float(clock),
        jitter_ns=round(found.jitter_ns, 2),
        timer="" if found.timer == default else found.timer,
        invalid=found.invalid,
    )


def _with_nvbench(session: GateSession, cases: Sequence[GateCase], kernels: GateKernels) -> GateSession:
    """The session with NVBench's readings, or with the reason why there are none."""
    missing = NVBENCH.missing()
    if missing is not None:
        return dataclasses.replace(session, rivals={NVBENCH.name: missing})
    chosen = [
        case for case in cases if (case.base or case.id) in NVBENCH_BASES and case.share in NVBENCH_SHARES
    ]

    def launch_on(case: GateCase) -> Callable[[int], Callable[[], Any]]:
        return lambda handle: kernels.on_handle(case, handle)

    try:
        found = nvbench_benchmarks({case.id: launch_on(case) for case in chosen})
    except Exception as error:  # noqa: BLE001 - another project's, and its row says so
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return dataclasses.replace(session, rivals={NVBENCH.name: problem})
    readings, problems = [], {}
    for name, entry in found.items():
        values = entry if isinstance(entry, str) else nvbench_mean(entry)
        if isinstance(values, str):
            problems[f"{NVBENCH.name}, {name}"] = values
        else:
            readings.append(NvbenchReading(name, round(values[0], 2), round(values[1], 8)))
    return dataclasses.replace(session, nvbench=tuple(readings), rivals=problems)
