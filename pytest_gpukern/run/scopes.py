"""Times what a subject launches: a plain test's call, or a case in each of its scopes."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.check.launch import Prepared, adopt, check_guards, check_outputs, is_slow
from pytest_gpukern.measure.by_timer import measured_by, not_of_the_device, with_warning
from pytest_gpukern.measure.measure import Repeated, measure, rule_beside, rule_for, warm_up
from pytest_gpukern.measure.observers import ObservedCall
from pytest_gpukern.measure.rounds import rule_of_rounds
from pytest_gpukern.problems.variants import SCOPES
from pytest_gpukern.timers.host import HostTimer
from pytest_gpukern.timers.timer import Iteration, NothingLaunched, PerCall
from pytest_gpukern.values.phases import phase
from pytest_gpukern.values.timer_table import timer_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpukern.backends.backend import Backend
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import HostResults
    from pytest_gpukern.run.environment import Environment
    from pytest_gpukern.timers.timer import Executions, Timer
    from pytest_gpukern.values.marker import MarkerOptions
    from pytest_gpukern.values.result import Measurement, Trace


def scopes_of(case: Case, environment: Environment, marker: MarkerOptions | None = None) -> tuple[str, ...]:
    """Returns the scopes to measure a case in: of those asked for, the ones that make sense for it."""
    possible = ("end_to_end",) if case.scopes == ("end_to_end",) else SCOPES
    if marker is not None and marker.scope is not None and marker.scope in possible:
        return (marker.scope,)
    asked = environment.settings.scopes
    return tuple(scope for scope in asked if scope in possible) if asked else case.scopes


def measure_scopes(
    sets: list[Prepared], point: Point, environment: Environment, marker: MarkerOptions
) -> tuple[Measurement, ...]:
    """Measures a checked case in each of its scopes, on each buffer set, on outputs that are poisoned first.

    Raises:
        IncorrectError: after one of the executions, chosen at random, an output was wrong.
    """
    first = sets[0]
    case, backend = first.case, first.backend
    scopes, host_results = scopes_of(case, environment, marker), environment.host_results
    if not poisoned_in_turn(case, backend) and scopes != ("transfer",):
        first.workspace.poison()  # a transfer alone would not write them again
    measurements: list[Measurement] = []
    for scope in scopes:
        calls = [scope_call(each, scope, host_results, number) for number, each in enumerate(sets)]
        with backend.current():
            call_ns = first.last_call_ns or 0.0
            launched = scope in ("kernel", "launch") or not backend.on_gpu  # as the check did
            compiled = not backend.on_gpu or call_ns != first.first_call_ns
            if not (launched and compiled and is_slow(first)):
                by_host = scope != "kernel" or not backend.on_gpu
                warm = restoring(first, calls[0])
                with phase("warming up"):
                    call_ns = warm_up(warm, backend.synchronize, compiled=True, by_host=by_host).settled_ns
            measurements += _measure_scope(sets, calls, scope, point, environment, marker, call_ns)
    if scopes[-1] == "transfer" and first.dataset.updated:  # it left inputs, but no result to check
        with backend.current():
            for prepared in sets:
                restoring(prepared, prepared.launch)()
    return tuple(measurements)


def trace_case(sets: list[Prepared], measurements: Sequence[Measurement], host_results: HostResults) -> Trace:
    """Executes a measured case once more and returns what that did, in the scope that does most.

    Raises:
        TimerUnavailable: CUPTI cannot be used here; the message says why.
    """
    from pytest_gpukern.timers.cupti.timer import trace_of

    measured = min(measurements, key=lambda each: _TRACED_FIRST.index(each.scope))
    calls = [scope_call(each, measured.scope, host_results, number) for number, each in enumerate(sets)]
    cold, backend = measured.cache == "cold", sets[0].backend
    with backend.current():
        (iteration,) = _executions(sets, calls, measured.scope).take(1, cold=cold)
        return trace_of(measured.scope, iteration, backend.timed_stream, cold=cold)


def restoring(prepared: Prepared, call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the call; if it updates arrays, a copy goes first that restores them."""
    if not prepared.dataset.updated:
        return call

    def restored() -> None:
        prepared.workspace.queue_poison(prepared.backend.timed_stream)
        call()

    return restored


def poisoned_in_turn(case: Case, backend: Backend) -> bool:
    """Returns whether outputs are poisoned before each execution: on the host that costs more than a call."""
    return backend.on_gpu and not case.variant.host_data


_TRACED_FIRST = ("end_to_end", "kernel", "transfer", "launch")


ELSEWHERE = "the test works in a CUDA context of its own, where only scope='launch' can be measured"


@dataclass(frozen=True)
class Timed:
    """Says what is timed in one scope: a case's launch or its copies, or a plain test's call.

    Attributes:
        executions: what the timer takes.
        call: what observers are told of it.
        environment: the observers.
        cache: `cold` or `hot`.
        call_ns: its approximate time, in nanoseconds.
        traffic_bytes: declared bytes of the work.
        flops: declared operations of the work.
        inspect: checks what a call left that the main timer timed; None if it cannot be checked.
        count: samples of the main timer, or None to sample until the median is known.
        calls_a_sample: calls in each.
        elsewhere: whether it works in a CUDA context of the test's own, in which nothing of ours can run.
    """

    executions: Executions
    call: ObservedCall
    environment: Environment
    cache: str
    call_ns: float
    traffic_bytes: float | None = None
    flops: float | None = None
    inspect: Callable[[], None] | None = None
    count: int | None = None
    calls_a_sample: int = 1
    elsewhere: bool = False

    def by_timers(
        self, wanted: str, stream: Any, *, any_stream: bool, refuses_host_calls: bool = False
    ) -> list[Measurement]:
        """Measures on the device by the main timer and, if that tells more, by a second one beside it.

        Args:
            wanted: the timer, as in `--gpukern-timer`.
            stream: the timed stream, as a cuda.core stream.
            any_stream: whether the call's work may outlast the timed stream.
            refuses_host_calls: whether a call that puts nothing on the GPU raises, instead of being INVALID.

        Raises:
            NothingLaunched: the call puts nothing on the GPU, and that is refused.
            IncorrectError: a timed call left an output wrong.
        """
        scope = self.call.scope
        try:
            if scope == "kernel" and self.elsewhere:
                raise NothingLaunched(ELSEWHERE)
            found = measured_by(self.by, wanted, scope=scope, stream=stream, any_stream=any_stream)
        except NothingLaunched as reason:
            if refuses_host_calls:
                raise
            found = [not_of_the_device(self.by, stream, reason)]
        return found

    def by(self, timer: Timer, *, beside: bool) -> Measurement:
        """Measures it by one timer, alone or beside the main one.

        Only a kernel that the device times is measured while other workers work on the host.
        """
        by_host = not timer_row(timer.name).device_timed
        gpu = self.environment.gpu
        with nullcontext() if self.call.scope == "kernel" and not by_host else gpu.timing_by_host():
            return self._by(timer, beside=beside, by_host=by_host)

    def _by(self, timer: Timer, *, beside: bool, by_host: bool) -> Measurement:
        rule = rule_beside(self.call_ns) if beside else rule_for(self.call_ns, by_host=by_host)
        return measure(
            self.executions,
            PerCall(timer, self.calls_a_sample) if self.calls_a_sample > 1 else timer,
            scope=self.call.scope,
            cache=self.cache,
            call_ns=self.call_ns,
            rule=rule if self.count is None else rule_of_rounds(self.count, rule, beside=beside),
            observing=None
            if self.elsewhere
            else self.environment.gpu.observers.observe(self.call, timer, beside=beside),
            inspect=None if beside else self.inspect,
            traffic_bytes=self.traffic_bytes,
            flops=self.flops,
            beside=beside,
        )


def _measure_scope(
    sets: list[Prepared],
    calls: list[Callable[[], Any]],
    scope: str,
    point: Point,
    environment: Environment,
    marker: MarkerOptions,
    call_ns: float,
) -> list[Measurement]:
    """Measures one scope of a case."""
    first = sets[0]
    case, backend = first.case, first.backend
    kernel = scope == "kernel"
    executions = _executions(sets, calls, scope)
    cache = "hot"
    if backend.on_gpu and scope != "launch":
        cache = marker.cache or environment.settings.cache
    flops = None if scope in ("transfer", "launch") else case.problem.flops(point)
    traffic_bytes = case.problem.traffic_bytes(point)
    rated_bytes = traffic_bytes if kernel or not backend.on_gpu else transfer_bytes(first, point)
    floor = None
    if kernel and environment.gpu.peaks is not None:
        floor = environment.gpu.peaks.floor(
            cache=cache, traffic_bytes=traffic_bytes, flops=flops, dtypes=first.dataset.dtypes
        )
    looks = backend.on_gpu and scope != "transfer"
    timed = Timed(
        executions,
        ObservedCall(scope, backend.on_gpu, floor),
        environment,
        cache,
        call_ns,
        None if scope == "launch" else rated_bytes,
        flops,
        inspect=(lambda: _check_last(executions, first)) if looks else None,
    )
    if not backend.on_gpu:
        return [timed.by(HostTimer(backend.synchronize), beside=False)]
    stream, wanted = backend.timed_stream, marker.timer or environment.settings.timer
    any_stream = not kernel or not getattr(stream, "is_nonblocking", True)
    found = timed.by_timers(wanted, stream, any_stream=any_stream)
    if not timer_row(found[0].timer).flushes and cache == "cold":
        found[0] = _perhaps_warm(found[0], first, len(sets))
    return found


def _executions(sets: list[Prepared], calls: list[Callable[[], Any]], scope: str) -> Executions:
    """Returns executions on each buffer set in turn; on the host, of one call again and again."""
    case, backend = sets[0].case, sets[0].backend
    updates = bool(sets[0].dataset.updated)
    if not (backend.on_gpu or updates):
        return Repeated(calls[0])
    poisons = scope != "transfer" and (updates or poisoned_in_turn(case, backend))
    return Rotation(sets, calls, stream=backend.timed_stream, poisons=poisons)


def _check_last(executions: Executions, first: Prepared) -> None:
    """Raises IncorrectError if the last execution left its buffer set wrong."""
    last = executions.last if isinstance(executions, Rotation) else first
    last.backend.synchronize()
    check_guards(last)
    adopt_last(last)
    check_outputs(last)


def _perhaps_warm(measurement: Measurement, prepared: Prepared, sets: int) -> Measurement:
    """Adds a warning to a cold graph's measurement if its buffer sets are too few to evict each other."""
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.timers.graph import sets_needed

    dataset = prepared.dataset
    needed = sets_needed(dataset.input_bytes + dataset.output_bytes, runtime().l2_bytes)
    if sets >= needed:
        return measurement
    return with_warning(
        measurement,
        f"the L2 may be warm: nothing is flushed inside a graph, and its {sets} buffer sets are fewer than "
        f"the {needed} that evict each other",
    )


def scope_call(prepared: Prepared, scope: str, host_results: HostResults, number: int) -> Callable[[], Any]:
    """Returns what a scope calls on buffer set `number`: the launch, the copies, or both.

    Host memory is pageable, as a user's.
    """
    workspace, dataset = prepared.workspace, prepared.dataset
    launch = kept(prepared) if prepared.case.variant.allocates else prepared.launch
    launches = scope in ("kernel", "launch") or prepared.case.variant.host_data
    if launches or not prepared.backend.on_gpu:
        return launch
    results = host_results.of(dataset, number)

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
    """Returns an allocating variant's launch; it keeps what it returned last, to be checked."""

    def launch() -> None:
        prepared.last_returned = prepared.launch()

    return launch


def adopt_last(prepared: Prepared) -> None:
    """Makes the arrays that the last launch returned the outputs."""
    if prepared.last_returned is not None:
        adopt(prepared, prepared.last_returned)


def transfer_bytes(prepared: Prepared, point: Point) -> float:
    """Returns the bytes copied in and out for one call, declared or counted."""
    declared = prepared.case.problem.transfer_bytes(point)
    return declared or float(prepared.dataset.input_bytes + prepared.dataset.output_bytes)


_STAY = 8
"""Hot executions on one set before the next set's turn."""
_LARGEST_BATCH = 256


class Rotation:
    """Executes on each buffer set in turn.

    With a cold cache, each execution goes to another set; first its outputs are poisoned and the L2 is
    flushed. With a hot cache, the turn changes every eight executions. First an untimed launch brings the set
    into the cache; then its outputs are poisoned, which leaves them there. What a call updates is restored
    before each execution.

    Args:
        sets: the case prepared on each set.
        calls: what is timed on each.
        stream: the timed stream, as a cuda.core stream; None on the host.
        poisons: whether a call writes the outputs, so that they may be poisoned before it.
    """

    def __init__(
        self, sets: list[Prepared], calls: list[Callable[[], Any]], *, stream: Any, poisons: bool
    ) -> None:
        self._sets = sets
        self._calls = calls
        self._stream = stream
        self._poisons = poisons
        self._updates = poisons and bool(sets[0].dataset.updated)
        self._taken = 0
        self.buffer_sets = len(sets)
        self.largest_batch = max(_LARGEST_BATCH, len(sets))

    @property
    def last(self) -> Prepared:
        """Returns the set of the last execution that was handed out."""
        return self._last

    def take(self, count: int, *, cold: bool) -> list[Iteration]:
        """Returns the next `count` executions."""
        return [self._cold() if cold else self._hot(first=not number) for number in range(count)]

    def _cold(self) -> Iteration:
        prepared, call = self._turn(1)
        launches = 2 + len(prepared.dataset.specs)
        return self._iteration(call, self._poison(prepared) if self._poisons else None, launches)

    def _hot(self, *, first: bool) -> Iteration:
        """Returns a hot execution; the first of a batch finds its set in the cache, whoever ran before."""
        changed = self._taken % _STAY == 0
        prepared, call = self._turn(_STAY)
        poison = self._poison(prepared) if self._poisons else None
        on_host = self._stream is None
        if on_host or not (first or changed):
            before = poison if self._updates else None
            return self._iteration(call, before, launches=2 + len(prepared.dataset.specs) * self._updates)

        def warm() -> None:
            if poison is not None and self._updates:
                poison()
            call()
            if poison is not None:
                poison()

        return self._iteration(call, warm, launches=3 + len(prepared.dataset.specs))

    def _iteration(
        self, call: Callable[[], Any], before: Callable[[], Any] | None, launches: int
    ) -> Iteration:
        """Returns an execution; if the call updates its arrays, each repeat begins with `before`."""
        again = functools.partial(self._iteration, call, before, launches) if self._updates else None
        return Iteration(call, before, again, launches)

    def _turn(self, stay: int) -> tuple[Prepared, Callable[[], Any]]:
        number = self._taken // stay % len(self._sets)
        self._taken += 1
        self._last = self._sets[number]
        return self._last, self._calls[number]

    def _poison(self, prepared: Prepared) -> Callable[[], None]:
        return lambda: prepared.workspace.queue_poison(self._stream)
