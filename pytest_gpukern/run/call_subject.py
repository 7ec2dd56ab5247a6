"""Measures a call of a plain test: calls and checks it, times it, and checks it once more."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from msgspec import structs

from pytest_gpukern.check.call_arguments import DeclarationError, takes_keyword
from pytest_gpukern.check.check_call import CheckedCalls, GuardedArrays, Turn
from pytest_gpukern.check.check_variant import NO_MISTAKES
from pytest_gpukern.check.diagnosis import Diagnosis, Fault, IncorrectError, Made, complaint
from pytest_gpukern.check.verify import SeenOutputs
from pytest_gpukern.gpu import runtime as cuda
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.simulator.launch import SimulatedLaunches
from pytest_gpukern.measure.measure import Repeated, Sampler, warm_up
from pytest_gpukern.measure.rounds import Rounds
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.run.only_changed import is_as_recorded
from pytest_gpukern.run.spine import Evidence, SubjectContext
from pytest_gpukern.run.timed_scope import OWN_CONTEXT, TimedScope
from pytest_gpukern.timers.host import LaunchTimer
from pytest_gpukern.timers.timer import (
    Executions,
    Iteration,
    NothingLaunched,
    Timer,
    TimerUnavailable,
    open_host_timer,
    open_timer,
)
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import CaseInfo, Declaration, Result
from pytest_gpukern.values.timer_table import TIMERS, auto_timers, host_timer


class Loop(NamedTuple):
    """Describes a loop that makes the calls itself, such as `pedantic` of pytest-benchmark.

    Attributes:
        run: runs it, with a function that makes the calls of each round: `around(calls, args, kwargs)`.
        requested: its `rounds`, `warmup_rounds` and `iterations`, which it checks before it calls.
    """

    run: Callable[[Callable[..., Any]], None]
    requested: Mapping[str, Any]


@dataclass(frozen=True)
class CallTarget:
    """Says what a plain test measures.

    Attributes:
        function: what is called; its signature may name arguments.
        next_turn: begins the next untimed call.
        executions: what is timed. `Rounds` decide themselves how many samples they take, of how many calls.
        fixed: whether every call has the same arguments.
        check: `check(returned, *args, **kwargs)` raises, or returns a `complaint`, of a wrong untimed call.
        called_after: whether a call follows timing even if nothing checks it.
        leaves_host_calls: whether a call that puts nothing on the GPU raises `NothingLaunched`. Such a test
            never asked for this plugin, so its calls are not checked.
        runs_once: whether an unmeasured call is made only once, unless the marker declares its outputs.
        loop: makes the calls, all that are made, or None.
    """

    function: Callable[..., Any]
    next_turn: Callable[[], Turn]
    executions: Executions
    fixed: bool = True
    check: Callable[..., Any] | None = None
    called_after: bool = False
    leaves_host_calls: bool = False
    runs_once: bool = False
    loop: Loop | None = None

    @classmethod
    def repeated(
        cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> CallTarget:
        """Repeats a call with the same arguments."""
        if not callable(function):
            right = "pass the kernel and its arguments, as in gpu_benchmark(kernel[grid, block], x, out)"
            remedy = "call gpu_benchmark.run(case)" if isinstance(function, Case) else right
            raise DeclarationError(f"gpu_benchmark was given {type(function).__name__} to call: {remedy}")
        for name in ("outputs", "inout", "written"):
            if name in kwargs and not takes_keyword(function, name):
                raise DeclarationError(
                    f"gpu_benchmark(…, {name}=…): the call takes no {name}; declare what it writes in the "
                    f"marker: @pytest.mark.gpu_benchmark({name}=…)"
                )
        call = functools.partial(function, *args, **kwargs)
        return cls(function, lambda: Turn(call, args, kwargs), Repeated(call))

    @classmethod
    def set_up(
        cls,
        function: Callable[..., Any],
        fresh: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]],
        check: Callable[..., Any] | None,
    ) -> CallTarget:
        """Makes fresh arguments for each call, before a batch of calls."""

        def turn() -> Turn:
            args, kwargs = fresh()
            return Turn(functools.partial(function, *args, **kwargs), args, kwargs)

        return cls(function, turn, Repeated(function, fresh), fixed=False, check=check, called_after=True)

    @classmethod
    def in_rounds(cls, rounds: Rounds, check: Callable[..., Any] | None = None) -> CallTarget:
        """Calls in the requested rounds: each is set up, called and torn down before the next."""

        def turn() -> Turn:
            return Turn(rounds.begin().execute, *rounds.arguments)

        return cls(rounds.target, turn, rounds, fixed=rounds.setup is None, check=check, called_after=True)

    @classmethod
    def in_loop(cls, function: Callable[..., Any], loop: Loop) -> CallTarget:
        """Leaves the calls to a loop."""
        turn = Turn(function, (), {})
        return cls(function, lambda: turn, Rounds(function), fixed=loop.requested["setup"] is None, loop=loop)


class CallSubject:
    """Takes one call of a plain test through the spine.

    We look at the zones of `guarded` arrays after each call, and after the timed ones.
    """

    def __init__(self, target: CallTarget, context: SubjectContext, guarded: GuardedArrays) -> None:
        gpu = context.environment.gpu
        self._target = target
        self._context = context
        self.is_timed = gpu.measures
        self._calls = CheckedCalls(
            target.function,
            context.marker,
            context.nodeid,
            waiting_for(gpu.device),
            guarded,
            fixed=target.fixed,
            repeats=self.is_timed or not target.runs_once,
            looks=not target.leaves_host_calls,
            poisons=context.environment.poisons,
        )

    @property
    def last(self) -> Any:
        """What the last untimed call returned."""
        return self._calls.last

    @property
    def seen(self) -> SeenOutputs | None:
        """Returns what the calls left in each output; None if they are not checked."""
        return None if self._target.leaves_host_calls else self._calls.seen

    def begin(self) -> Result:
        return result_of(self._context, simulated=self._context.environment.gpu.simulated.active)

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Ends the last round of `Rounds`, unless it failed. The test prepares all else itself."""
        executions = self._target.executions
        if isinstance(executions, Rounds):
            executions.synchronize = self._calls.synchronize
        yield
        if isinstance(executions, Rounds):
            executions.finish()

    def check(self, evidence: Evidence) -> None:
        """Makes the first call, and as many more as its outputs need.

        Raises:
            IncorrectError: a call was wrong.
            DeclarationError: the marker names an output that the call does not have or cannot write, or
                `determinism` without any.
        """
        with self._noting_what_is_launched(evidence):
            first = self._call("in the first call")
        self._judge(evidence, *first, "before timing")
        del first  # else the third call finds no memory of an earlier one, which we could poison
        calls = 1
        while self._calls.wants_another(calls):
            calls += 1
            self._judge(evidence, *self._call(f"in our untimed call {calls}"), "before timing")
        evidence.add_note(*self._calls.notes)

    @contextmanager
    def _noting_what_is_launched(self, evidence: Evidence) -> Iterator[None]:
        """Notes how long the first call took. What launches nothing is timed by the host's clock, left to
        others, or noted."""
        simulated = SimulatedLaunches.made
        try:
            yield
        finally:
            evidence.add(first_call_ns=self._calls.first_call_ns, declared=self._declared())
        if self._context.environment.gpu.has_gpu or SimulatedLaunches.made != simulated:
            return
        if self._target.leaves_host_calls:
            raise NothingLaunched("the call launched nothing in the simulator")
        evidence.add(simulated=False)
        if self._context.times_host:
            self.is_timed = self._context.environment.settings.benchmark
            evidence.add(case=structs.replace(evidence.result.case, backend="host"))
        else:
            evidence.add_note(
                Note('the first call launched no kernel; to time host code, mark the test timer="host"')
            )

    def _declared(self) -> Declaration:
        marker = self._context.marker
        return Declaration(
            outputs=self._calls.must_write,
            inputs=self._calls.forms,
            scopes=self._context.timed_as(("kernel",)),
            work={"bytes": marker.bytes or 0, "flops": marker.flops or 0},
            guarded=self._calls.guarded,
            has_check=self._target.check is not None,
            threshold=marker.threshold,
            determinism=marker.determinism,
        )

    def measure(self, evidence: Evidence) -> None:
        """Times the call: in its rounds if the test asks for them, else until the median is known."""
        environment, executions = self._context.environment, self._target.executions
        on_gpu = environment.gpu.has_gpu
        cold = on_gpu and self._context.cache == "cold"
        count, calls_a_sample = None, 1
        if isinstance(executions, Rounds):
            executions.warm_up()
            count, calls_a_sample = executions.count, executions.calls(cold=cold)
            if calls_a_sample < executions.iterations:
                unused = f"iterations={executions.iterations} is not used"
                evidence.add_note(
                    Note(f"{unused}: with a cold cache each sample is one call; cache='hot' uses it")
                )
        executions = self._calls.restored(executions)
        observed = [environment.gpu.launches_observed()]

        def once() -> None:
            with observed.pop() if observed else nullcontext():
                executions.take(1, cold=cold)[0].execute()

        warm = warm_up(once, self._calls.synchronize, compiled=True, by_host=not on_gpu)
        inspect = self._calls.inspect
        timed = [
            self._timed(
                scope,
                self._calls.timed(executions),
                warm.settled_ns,
                inspect=inspect,
                count=count,
                calls_a_sample=calls_a_sample,
            )
            for scope in self._scopes()
        ]
        if is_as_recorded(timed[0], evidence):
            return
        measurements = tuple(scope.measured() for scope in timed)
        if inspect is not None:
            inspect()
        evidence.add(measurements=measurements)
        evidence.add_note(*self._calls.strided())
        if on_gpu and environment.settings.trace:
            evidence.add_trace(timed[0].trace)

    def _timed(self, scope: str, executions: Executions, call_ns: float, **more: Any) -> TimedScope:
        """Says what is timed in a scope, with what the marker declares of the work."""
        marker, on_gpu = self._context.marker, self._context.environment.gpu.has_gpu
        return TimedScope(
            scope,
            executions,
            self._context,
            on_gpu,
            call_ns,
            marker.bytes,
            marker.flops,
            own_context=on_gpu and cuda.in_own_context(),
            synchronize=self._calls.synchronize,
            stream=self._stream,
            leaves_host_calls=self._target.leaves_host_calls,
            **more,
        )

    @property
    def _stream(self) -> Any:
        """The legacy default stream, which waits for every other blocking stream; None without a GPU.

        Numba, CuPy and PyCUDA launch on it unless told otherwise.
        """
        return cuda.runtime().device.default_stream if self._context.environment.gpu.has_gpu else None

    def _scopes(self) -> tuple[str, ...]:
        """Returns the scopes of the marker or the run; `kernel` shows whether the call launches anything."""
        if not self._context.environment.gpu.has_gpu:
            return ("end_to_end",)
        marker = self._context.marker
        wanted = (marker.scope,) if marker.scope else self._context.environment.settings.scopes
        scopes = [scope for scope in wanted if scope == "launch"]
        if self._target.leaves_host_calls or not scopes or "kernel" in wanted:
            scopes.insert(0, "kernel")
        return tuple(scopes)

    def recheck(self, evidence: Evidence) -> None:
        """Makes one more call, if anything of it is checked or returned."""
        if not (self._target.called_after or self._calls.wanted_after_timing):
            return
        self._judge(evidence, *self._call("in our untimed call after timing"), "after timing")
        if self._target.fixed and not isinstance(self._target.executions, Rounds):
            self._calls.repeat(self._target.next_turn, "in our untimed call after timing")
        evidence.add_note(*self._calls.notes)

    def _call(self, place: str, turn: Turn | None = None) -> tuple[Made, Turn]:
        """Makes a call, by default the next untimed one, and checks what it did."""
        first, gpu = self._calls.first_call_ns is None, self._context.environment.gpu
        with gpu.loading_observed() if first else nullcontext():  # also what its preparation loads
            turn = turn or self._target.next_turn()
            return self._calls.make(turn, place), turn

    def _judge(self, evidence: Evidence, made: Made, turn: Turn, when: str) -> None:
        check, (_, args, kwargs) = self._target.check, turn
        if check is None:
            return
        with suppress(ValueError):  # not a Python function, so no signature
            try:
                inspect.signature(check).bind(made.returned, *args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    "pedantic(check=…) is called as check(returned, *args, **kwargs), here with "
                    f"{1 + len(args) + len(kwargs)} arguments, which it does not take: {error}"
                ) from None
        try:
            answer = check(made.returned, *args, **kwargs)
        except Exception as error:
            if not isinstance(error, NO_MISTAKES):
                evidence.fails(f"check {when}: {str(error).strip()}")
            raise
        wrong = complaint(answer, TypeError)
        if wrong is not None:
            raise IncorrectError(Diagnosis(Fault.WRONG_VALUES, f"check {when}: {wrong}"))
        evidence.passes()


class LoopSubject(CallSubject):
    """Takes the calls of a loop through the spine, and adds none.

    The first call and the last round are checked. Every round behind the warm-up and the first call, which
    compiles, is timed, unless its timer would have to make its calls again.
    """

    def __init__(self, target: CallTarget, context: SubjectContext, guarded: GuardedArrays) -> None:
        super().__init__(target, context, guarded)
        assert target.loop is not None
        self.is_timed |= context.times_host
        self._loop, self._made = target.loop, 0
        self._sampler: Sampler | None = None
        self._refused = TimerUnavailable("the first call compiles and loads, so it is not timed")

    def check(self, evidence: Evidence) -> None:
        """Runs the loop if nothing of it is timed."""
        if not self.is_timed:
            self._run(evidence)

    def measure(self, evidence: Evidence) -> None:
        """Runs the loop, and times its rounds.

        Raises:
            NothingLaunched: the calls put nothing on the GPU.
            TimerUnavailable: no round could be timed.
        """
        with self._context.environment.gpu.timing_by_host():
            self._run(evidence)
        sampler, suspicion = self._sampler, None
        if sampler is None or not sampler.sampling.samples:
            raise self._refused
        with suppress(TimerUnavailable):
            suspicion = sampler.timer.suspicion(Iteration(_refuse, fresh=_refuse))
        timed, rounds = len(sampler.sampling.samples), self._loop.requested["rounds"]
        if timed < rounds:
            evidence.add_note(Note(f"{timed} of {rounds} rounds are timed: {self._refused}"))
        evidence.add(measurements=(sampler.finished(suspicion),))
        evidence.add_note(*self._calls.strided())

    def recheck(self, evidence: Evidence) -> None:
        """Does nothing: the last round was checked."""

    def _run(self, evidence: Evidence) -> None:
        self._calls.restored(self._target.executions)  # refuses what rounds cannot do
        with self._noting_what_is_launched(evidence):
            self._loop.run(self._round)
        evidence.add_note(*self._calls.notes)
        if isinstance(self._refused, NothingLaunched):
            raise self._refused

    def _round(self, calls: Callable[[], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Makes the calls of a round once; returns what the loop makes of them."""
        requested, number, done = self._loop.requested, self._made, list[Any]()
        last = number == requested["warmup_rounds"] + requested["rounds"] - 1
        self._made += 1

        @functools.wraps(self._target.function, assigned=(), updated=())
        def once() -> None:
            done.append(calls())

        def run() -> Any:
            if self.is_timed and number >= max(1, requested["warmup_rounds"]):
                self._sample(Iteration(once, fresh=_refuse, launches=requested["iterations"]), last=last)
            if not done:
                once()
            return done[0][1] if isinstance(done[0], tuple) else None  # else it is the time of several calls

        if last or number == 0:
            try:
                self._call("in the last round" if number else "in the first call", Turn(run, args, kwargs))
            except NothingLaunched as reason:  # the loop goes on
                self._refused = reason
        else:
            run()
        return done[0]

    def _sample(self, iteration: Iteration, *, last: bool) -> None:
        """Takes a sample of a round, if a timer can; else the round may not have been executed."""
        if isinstance(self._refused, NothingLaunched):
            return
        try:
            self._sampler = self._sampler or self._new_sampler()
            self._sampler.take(iteration, last=last)
        except TimerUnavailable as reason:
            self._refused = reason

    def _new_sampler(self) -> Sampler:
        """Returns a sampler by the first timer that works, without a queue, which may execute again."""
        repeated, calls = Repeated(self._target.function), self._loop.requested["iterations"]
        timed = self._timed(self._scopes()[0], repeated, 0.0, calls_a_sample=calls)
        if timed.scope == "end_to_end":
            timer = open_host_timer(host_timer(self._context.timer), self._calls.synchronize)
        elif timed.scope == "launch":
            timer = LaunchTimer.on_stream(self._stream, any_stream=True, queues=False)
        elif timed.own_context:
            raise NothingLaunched(OWN_CONTEXT)
        else:
            timer = self._opened(self._context.timer)
        return timed.sampler(timer, StoppingRule())

    def _opened(self, wanted: str) -> Timer:
        names = auto_timers() if wanted == "auto" else (wanted,)
        for name in names[:-1]:
            try:
                return open_timer(name, self._stream, any_stream=True, queues=False)
            except TimerUnavailable as reason:
                self._calls.notes[Note(f"not timed by {TIMERS[name].label}: {reason}")] = None
        return open_timer(names[-1], self._stream, any_stream=True, queues=False)


def _refuse() -> NoReturn:
    """Stands for a round that was executed and may not be executed again."""
    raise TimerUnavailable("the timer would have to make the calls of others again")


def result_of(context: SubjectContext, *, simulated: bool = False) -> Result:
    """Returns the result of a plain test in which nothing ran."""
    case = info_of_test(context.nodeid, context.test_file, context.rootdir)
    return context.new_result(case, simulated=simulated)


def info_of_test(nodeid: str, test_file: Path, rootdir: Path, *, on_host: bool = False) -> CaseInfo:
    """Returns the case of a plain test, with the path of its module in place of a problem.

    It depends on no option, working folder or import mode, so every process of a run, and every run, finds
    the same record. `rootdir` is pytest's. `on_host` says that its times are the host's own.
    """
    name = nodeid.partition("::")[2] or nodeid
    function, bracket, parameters = name.partition("[")  # two tests may differ only in a :: or . there
    return CaseInfo(
        id=f"{test_file.stem}/{function.replace('::', '.')}{bracket}{parameters}",
        problem=module_path(test_file, rootdir),
        problem_version=1,
        variant=name,
        backend="host" if on_host else None,
        point={},
        parameters={},
        baseline_dir=str(test_file.parent / "baselines"),
        baseline_name=test_file.stem,
    )


def module_path(test_file: Path, rootdir: Path) -> str:
    """Returns a test file's path from its repository's root, such as `tests/test_exp`.

    Outside of a repository it is the path from `rootdir`.
    """
    path = os.path.relpath(test_file, _repository(test_file.parent) or rootdir)
    return Path(path).as_posix().removesuffix(".py")


@functools.cache
def _repository(folder: Path) -> Path | None:
    """Returns the root of the git repository, or of the worktree, around a folder, or None."""
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)


def waiting_for(device: Device | None) -> Callable[[], None]:
    """Returns a function that waits for all work on the device; without a real one it does nothing."""
    if device is None or device.is_simulated:
        return list[None]().clear  # does nothing, and costs the host's clock less than a function of ours
    return cuda.runtime().synchronize
