"""Makes a launch and checks everything about it, of a variant or of a test's own call. `CHECKS` says what."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.backends.foreign_array import leaves
from pytest_gpukern.check.diagnosis import (
    UNWRITTEN_ON_PURPOSE,
    Diagnosis,
    Fault,
    IncorrectError,
    Made,
    diagnose_aliasing,
    diagnose_changed,
    diagnose_damage,
    diagnose_launches,
    diagnose_values,
    told_unwritten,
)
from pytest_gpukern.gpu.live_threads import running_threads, still_running, threads_left, wait_for
from pytest_gpukern.values.note import Note

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pytest_gpukern.check.diagnosis import ComparedOutput, Launch

    Looking = Generator[None, Made, Diagnosis | None]


_MOST_REPEATED = 200
_REPEATED_NS = 1.5e7
"""The most launches that we compare by hash alone, and about how long they take."""
_MAY_COME_LATE = {Fault.NOT_WRITTEN, Fault.WRONG_VALUES, Fault.UNEXPECTED_NAN, Fault.STALE_RESULT}
"""Faults of an output that a thread explains which the launch has left at work."""


class Check(NamedTuple):
    """Describes one check; one of the two functions says what it looks at.

    Attributes:
        launch: a generator function that looks at one launch. The code before its `yield` runs before the
            launch. The `yield` gives what the launch made. The function returns a diagnosis, or None.
        output: looks at an output beside its reference: after a launch of a case, and wherever a test calls
            `verify`.
        timed: whether `launch` also looks at what timed launches left. For these it kept nothing from before.
    """

    launch: Callable[[Launch], Looking] | None = None
    output: Callable[[ComparedOutput], Diagnosis | None] | None = None
    timed: bool = False


def shares_memory(launch: Launch) -> Looking:
    """Finds outputs that lie in an input or in each other."""
    yield
    apart = launch.returns_apart
    return diagnose_aliasing(launch.results, launch.inputs, {}, launch.sharing_remedy, apart=apart)


def out_of_bounds(launch: Launch) -> Looking:
    """Finds what was written into guard zones."""
    yield
    return diagnose_damage(launch.damage(), launch.place)


def unwritten(launch: Launch) -> Looking:
    """Looks at outputs without a reference: finds elements that hold a poison, or changed and must not."""
    yield
    at = f", {launch.place}" if launch.place else ""
    for name, shape, count, first, changed in launch.written():
        diagnosis = None if changed is None else diagnose_changed(name, changed)
        if diagnosis is not None:
            return Diagnosis(diagnosis.fault, f"{diagnosis.message}{at}")
        if count:
            message = told_unwritten(name, shape, count, first)
            return Diagnosis(Fault.NOT_WRITTEN, f"{message}{at}; {UNWRITTEN_ON_PURPOSE}")
    return None


def misses_its_reference(launch: Launch) -> Looking:
    """Has the checks of outputs look at each output that has a reference."""
    yield
    return next(filter(None, map(judge_output, launch.compared())), None)


def wrong_values(compared: ComparedOutput) -> Diagnosis | None:
    """Finds elements outside the tolerance, unwritten ones, and NaN."""
    name, tolerance = compared.name, compared.tolerance
    return diagnose_values(name, compared.comparison, tolerance, poisoned=compared.poisoned)


def works_on(launch: Launch) -> Looking:
    """Finds outputs that threads change after the launch has returned; threads that do not are noted."""
    made = yield
    if not made.threads:
        return None
    told = still_running(list(made.threads), launch.by)
    wait_for(made.threads)
    launch.synchronize()
    now = launch.bits()
    late = [name for name, bits in made.bits.items() if now[name] != bits]
    if late:
        return _left_to_threads(told, f"{', '.join(late)} changed after {launch.by} had returned")
    if any(thread.is_alive() for thread in made.threads):
        launch.notes[Note(told)] = None
    return None


def writes_inputs(launch: Launch) -> Looking:
    """Finds inputs that the launch, or its preparation, has changed."""
    before = launch.digests_before()
    yield
    now = launch.digests() if before else {}
    changed = [name for name in now if now[name] != before[name]]
    if not changed:
        return None
    told = f"{Fault.INPUT_MODIFIED}: {launch.by} changed {', '.join(changed)}{launch.modified_remedy}"
    return Diagnosis(Fault.INPUT_MODIFIED, told)


def returns_the_same_memory(launch: Launch) -> Looking:
    """Finds results in memory that an earlier launch returned, too.

    It comes behind the values, since shared memory more often explains a stale result than the other way
    round.
    """
    yield
    return diagnose_aliasing(launch.renewed, {}, launch.held, launch.renewing_remedy, apart=False)


def differs(launch: Launch) -> Looking:
    """Finds launches on the same inputs that differ bit by bit although they are declared not to."""
    yield
    found = (diagnose_launches(name, bits, launch.determinism) for name, bits in launch.seen_bits.items())
    return next(filter(None, found), None)


CHECKS = (
    Check(shares_memory, timed=True),
    Check(out_of_bounds, timed=True),
    Check(unwritten, timed=True),
    Check(misses_its_reference, timed=True),
    Check(output=wrong_values),
    Check(works_on),
    Check(writes_inputs),
    Check(returns_the_same_memory),
    Check(differs, timed=True),
)
"""All checks of a launch, in this order; a further one is a file and a row."""


def checked_launch(launch: Launch, *, poisoned: bool = True) -> Made:
    """Launches once, and has every check look at it.

    Args:
        launch: what to launch.
        poisoned: whether to poison the outputs; else they still hold what an earlier launch left.

    Raises:
        IncorrectError: something is wrong; it holds the first fault.
    """
    looking = [None if check.launch is None else check.launch(launch) for check in CHECKS]
    for look in looking:
        _ended(look)
    launch.fill(poisoned=poisoned)
    launch.synchronize()
    threads, first = running_threads(), launch.first_call_ns is None
    start = time.perf_counter_ns()
    returned = launch.run()
    launch.last_call_ns = float(time.perf_counter_ns() - start)
    if first:
        launch.first_call_ns = launch.last_call_ns
    left = tuple(threads_left(threads, first=first))
    _refuse_undone(launch, returned)
    launch.take(returned)
    made = Made(returned, launch.last_call_ns, left, launch.bits() if left else {})
    _judge(launch, looking, made)
    return made


def _refuse_undone(launch: Launch, returned: Any) -> None:
    """Raises IncorrectError for a returned value that stands for work that is not done."""
    for name, value in leaves("returned", returned):
        undone = launch.why_undone(value)
        if undone is not None:
            told = f"{name}: {Fault.WRONG_TYPE}: {launch.by} returned {undone}"
            raise IncorrectError(Diagnosis(Fault.WRONG_TYPE, told))


def check_left(launch: Launch) -> None:
    """Checks what the last timed launch left; raises as `checked_launch` does."""
    launch.synchronize()
    launch.take_timed()
    looking = [check.launch(launch) if check.launch and check.timed else None for check in CHECKS]
    for look in looking:
        _ended(look)
    _judge(launch, looking, Made(None, 0.0))


def _judge(launch: Launch, looking: Sequence[Looking | None], made: Made) -> None:
    """Goes through all checks after a launch; raises IncorrectError for the first that finds something."""
    for look in looking:
        diagnosis = _ended(look, made)
        if diagnosis is not None and made.threads and diagnosis.fault in _MAY_COME_LATE:
            diagnosis = _left_to_threads(still_running(list(made.threads), launch.by), diagnosis.message)
        if diagnosis is not None:
            raise IncorrectError(diagnosis, launch.errors)


def judge_output(output: ComparedOutput) -> Diagnosis | None:
    """Returns what is wrong with an output beside its reference, or None."""
    found = (check.output(output) for check in CHECKS if check.output is not None)
    diagnosis = next(filter(None, found), None)
    if diagnosis is None:
        return None
    message = f"{diagnosis.message}{output.more}"
    if not output.is_stale():
        return Diagnosis(diagnosis.fault, message)
    told = "right for the inputs that the buffers held before, not for those they hold now"
    return Diagnosis(Fault.STALE_RESULT, f"{output.name}: {Fault.STALE_RESULT}: {told}\n{message}")


def repeat_while_steady(
    launch: Launch, again: Callable[[], object], *, most: int = _MOST_REPEATED, for_ns: float = math.inf
) -> bool:
    """Launches again and again while outputs that had the same bits so far keep them: a fault may be rare.

    A fault in one of N launches is found with a chance of 1 − (1 − 1/N) ** launches. `for_ns` limits how
    long we go on. Returns whether a launch differed.
    """
    steady, ends = launch.steady, time.perf_counter_ns() + for_ns
    for _ in range(most if steady else 0):
        again()
        if not set(steady) <= set(launch.steady):
            return True
        if time.perf_counter_ns() > ends:
            break
    return False


def worth_repeating(call_ns: float | None) -> int:
    """Returns how many launches of so long we compare by hash alone."""
    return int(min(_MOST_REPEATED, _REPEATED_NS / max(1.0, call_ns or 0.0)))


def _ended(look: Looking | None, made: Made | None = None) -> Diagnosis | None:
    """Goes on with a check, to its `yield` or behind it; returns its diagnosis once it has ended."""
    try:
        if look is not None:
            next(look) if made is None else look.send(made)
    except StopIteration as end:
        diagnosis: Diagnosis | None = end.value
        return diagnosis
    return None


def _left_to_threads(told: str, wrong: str) -> Diagnosis:
    """Returns the diagnosis of a launch whose threads work on after it has returned."""
    remedy = "a launch must do its own work, or join the threads that do it"
    return Diagnosis(Fault.STILL_RUNNING, f"{told}; {remedy}\n{wrong}")
