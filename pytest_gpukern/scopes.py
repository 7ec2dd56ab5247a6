"""What is timed in each scope, and by which timer: the launch, the copies, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.check import Prepared, adopt
from pytest_gpukern.measure import measure, warm_up
from pytest_gpukern.problem import SCOPES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pytest_gpukern.backends import Backend
    from pytest_gpukern.dataset import Dataset
    from pytest_gpukern.environment import Environment
    from pytest_gpukern.marker import MarkerOptions
    from pytest_gpukern.problem import Case, Point
    from pytest_gpukern.result import Measurement
    from pytest_gpukern.timers import Timer

NEEDS_NO_WARM_UP_NS = 5e9
"""A call this long has warmed up everything while it was checked."""


def scopes_of(case: Case, environment: Environment) -> tuple[str, ...]:
    """The scopes in which a case is measured: those asked for, among those that make sense for it."""
    asked = environment.settings.scopes
    if not asked:
        return case.scopes
    possible = ("end_to_end",) if case.scopes == ("end_to_end",) else SCOPES
    return tuple(scope for scope in asked if scope in possible)


def measure_scopes(
    prepared: Prepared, point: Point, environment: Environment, marker: MarkerOptions
) -> tuple[Measurement, ...]:
    """Measures a checked case in each of its scopes, on outputs that are poisoned first."""
    case, backend = prepared.case, prepared.backend
    if scopes_of(case, environment) != ("transfer",):  # which launches nothing that could write again
        prepared.workspace.poison()
    problem = case.problem
    measurements = []
    for scope in scopes_of(case, environment):
        timer = timer_for(scope, backend, environment, marker)
        cache = (marker.cache or environment.settings.cache) if backend.on_gpu else "hot"
        call = scope_call(prepared, scope)
        with backend.current():
            call_ns = prepared.last_call_ns or 0.0
            launched = scope == "kernel" or not backend.on_gpu  # the check has run exactly this call
            if not launched or call_ns < NEEDS_NO_WARM_UP_NS:
                call_ns = warm_up(call, backend.synchronize, compiled=launched).settled_ns
            measurements.append(
                measure(
                    call,
                    timer,
                    scope=scope,
                    cache=cache,
                    call_ns=call_ns,
                    traffic_bytes=problem.traffic_bytes(point)
                    if scope == "kernel" or not backend.on_gpu
                    else transfer_bytes(prepared, point),
                    flops=None if scope == "transfer" else problem.flops(point),
                )
            )
    return tuple(measurements)


def timer_for(scope: str, backend: Backend, environment: Environment, marker: MarkerOptions) -> Timer:
    """The timer of a scope: events for kernels on a GPU, the host's clock for what ends on the host."""
    wanted = marker.timer or environment.settings.timer
    if backend.on_gpu and scope == "kernel" and wanted in ("auto", "event"):
        from pytest_gpukern.backends.cuda import runtime
        from pytest_gpukern.timers.event import EventTimer

        return EventTimer(runtime())
    from pytest_gpukern.timers.host import HostTimer

    if backend.on_gpu:
        from pytest_gpukern.backends.cuda import runtime

        return HostTimer(backend.synchronize, runtime().flush_l2)
    return HostTimer(backend.synchronize)


def scope_call(prepared: Prepared, scope: str) -> Callable[[], Any]:
    """What is timed in a scope: the launch, the copies, or both; host memory is pageable, as a user's is."""
    workspace, dataset = prepared.workspace, prepared.dataset
    launch = kept(prepared) if prepared.case.variant.allocates else prepared.launch
    if scope == "kernel" or not prepared.backend.on_gpu or prepared.case.variant.host_data:
        return launch
    results = host_results(dataset)

    def copy_out() -> None:
        for name, into in results.items():
            workspace.fetch(name, into)

    def transfer() -> None:
        workspace.load(dataset.inputs)
        copy_out()

    def end_to_end() -> None:
        workspace.load(dataset.inputs)
        launch()
        prepared.backend.synchronize()
        if prepared.case.variant.allocates:
            adopt_last(prepared)
        copy_out()

    return transfer if scope == "transfer" else end_to_end


def kept(prepared: Prepared) -> Callable[[], Any]:
    """The launch of an allocating variant, keeping what it returned last so that it can be checked."""

    def launch() -> None:
        prepared.last_returned = prepared.launch()

    return launch


def adopt_last(prepared: Prepared) -> None:
    """Makes the arrays that the last launch returned the outputs."""
    if prepared.last_returned is not None:
        adopt(prepared, prepared.last_returned)


def host_results(dataset: Dataset) -> dict[str, np.ndarray[Any, Any]]:
    """Host arrays for the outputs, touched once so that their pages exist before anything is timed."""
    import numpy as np

    return {name: np.ones(spec.shape, spec.dtype) for name, spec in dataset.specs.items()}


def transfer_bytes(prepared: Prepared, point: Point) -> float:
    """Bytes copied in and out for one call, declared or counted."""
    declared = prepared.case.problem.transfer_bytes(point)
    return declared or float(prepared.dataset.input_bytes + prepared.dataset.output_bytes)
