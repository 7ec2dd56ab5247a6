"""Checks a variant: on each data set, again on the same inputs, and in corner cases."""

from __future__ import annotations

import dataclasses
import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest
from msgspec import structs

from pytest_gpukern.arrays.compare import POISONS, Comparison, Tolerance, dtype_missing
from pytest_gpukern.backends.backend import Backend, Workspace
from pytest_gpukern.backends.foreign_array import UsersArray, is_number, type_name
from pytest_gpukern.backends.torch import why_not_launched
from pytest_gpukern.check.diagnosis import (
    Diagnosis,
    Fault,
    IncorrectError,
    Launch,
    Written,
    complaint,
    diagnose_form,
    diagnose_values,
)
from pytest_gpukern.check.engine import check_left, checked_launch, repeat_while_steady, worth_repeating
from pytest_gpukern.gpu import memory_accounts
from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported, WroteOutside
from pytest_gpukern.problems.call_by_name import Point, ProblemError, call_by_name, place_of
from pytest_gpukern.problems.cases import Case
from pytest_gpukern.problems.dataset import CONTENTS, Dataset, Datasets
from pytest_gpukern.problems.problem import Output, Run
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.options import sanitizing_tool
from pytest_gpukern.values.result import Contents, OutputError, of_launches

NO_MISTAKES = (SimulatorUnsupported, ProblemError, pytest.exit.Exception)  # SIGTERM ends a run by the last
"""Errors in a user's code that say nothing about its kernel."""
SLOW_ON_HOST_NS = 5e7
SLOW_ON_DEVICE_NS = 2e7
"""A longer call has warmed up everything while it was checked, and is repeated as rarely as possible."""
_LAUNCHES = 3
"""Launches on the same inputs by which we judge a declared determinism; two if they are slow."""
_VERY_SLOW_NS = 1e9
"""A launch that takes longer is not repeated for that."""
_NOT_AGAIN_NS = 5e9
"""A launch on the device that takes longer is not made once more after timing."""
AFTER_TIMING = "correct before timing, wrong after it\n"
_HOLD_NS = 1e6
"""Time to make a warm call and to queue a few copies."""
_RUNS_OF_SLOW = 3
"""Runs before timing; the timed launch is one more, with a seed of its own."""


class Prepared(Launch):
    """Holds a variant that is ready to be launched on a data set in its workspace.

    Attributes:
        point: the point as it runs here.
        workspace: holds `dataset`, by default the first of `datasets`.
        launch: exactly what is timed.
        dataset: what the buffers hold now.
        datasets: all sets that it is checked on, in that order.
        hashes: whether launches on the first set are compared bit by bit.
        last_returned: what the last launch of an allocating variant returned, held as a caller would.
        runs: launches for a statistical check, by the `seed_offset` of their set.

    Raises:
        IncorrectError: the variant's untimed part raises, or returns no function.
        ProblemError: it takes something that the problem does not have.
    """

    def __init__(
        self,
        case: Case,
        point: Point,
        backend: Backend,
        workspace: Workspace,
        datasets: Sequence[Dataset],
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(backend.synchronize, workspace.damage, case.variant.determinism)
        self.case, self.point, self.backend, self.workspace = case, point, backend, workspace
        self.datasets = list(datasets)
        self.dataset = dataset or self.datasets[0]
        self.hashes = True
        self.last_returned: Any = None
        self.runs: dict[int, Run] = {}
        self._words = itertools.cycle(backend.poisons)
        self.prepare()

    def prepare(self) -> None:
        """Calls the variant's untimed part on what the buffers hold."""
        case, backend = self.case, self.backend
        assert case.variant.prepare is not None
        named = {**case.problem.named(self.point), **case.parameters, **self.workspace.arrays}
        try:
            with backend.current():
                launch = call_by_name(case.variant.prepare, {**named, "stream": backend.stream})
        except Exception as error:
            raise self._failed("preparing", error) from error
        if not callable(launch):
            wrong = f"returned {type(launch).__name__}; it must return the function to time"
            raise IncorrectError(Diagnosis(Fault.WRONG_TYPE, f"{case.variant.label} {wrong}"))
        self.launch: Callable[[], Any] = launch

    def turn_to(self, dataset: Dataset) -> None:
        """Puts other contents into the buffers, and prepares the variant anew if scalars differ."""
        if dataset.scalars != self.dataset.scalars:
            # Before the arrays are loaded, so that a variant that computes while preparing is wrong.
            self.workspace.arrays.update(dataset.scalars)
            self.prepare()
        self.workspace.fill(dataset.inputs)
        self.dataset = dataset

    def turn_to_others(self) -> bool:
        """Puts other contents with the same scalars into the buffers; returns whether there are any."""
        for other in self.datasets:
            if other is not self.dataset and other.scalars == self.dataset.scalars:
                self.turn_to(other)
                return True
        return False

    @property
    def is_slow(self) -> bool:
        limit_ns = SLOW_ON_DEVICE_NS if self.backend.on_gpu else SLOW_ON_HOST_NS
        return self.shortest_call_ns > limit_ns

    def errors_with_bits(self, *, tells_determinism: bool = True) -> dict[str, OutputError]:
        """The worst error of each output, with its hash for the first data set and its determinism."""
        first, seen = self.datasets[0], self.seen_bits
        comparable = first.expected is not None and first.seed is None
        return {
            name: structs.replace(
                error,
                bits=seen[name][0] if comparable and name in seen else None,
                determinism=of_launches(seen.get(name, ())) if tells_determinism else None,
                dtype=str(np.dtype(first.specs[name].dtype)),
                reference=first.references.get(name),
            )
            for name, error in self.errors.items()
        }

    @cached_property
    def on_host(self) -> dict[str, np.ndarray[Any, Any]]:
        """Host arrays that timed copies bring the outputs into, touched once so that their pages exist.

        Touching new pages takes longer than copying into them. No kernel is ever given these arrays.
        """
        return {name: np.ones(spec.shape, spec.dtype) for name, spec in self.dataset.specs.items()}

    def launch_and_keep(self) -> None:
        self.last_returned = self.launch()

    def let_go(self) -> None:
        """Drops the launch and what it returned, so that its memory can be freed; it cannot be made again."""
        del self.launch
        self.last_returned = None

    # what the engine asks for

    def fill(self, *, poisoned: bool) -> None:
        """Poisons the outputs; if not `poisoned`, they still hold the answer for other contents."""
        if poisoned:
            self.workspace.poison()
        if self.case.variant.allocates and self.backend.on_gpu:
            sizes = {spec.nbytes for spec in self.dataset.specs.values()}
            reasons = memory_accounts.poison_free(sizes - {0}, next(self._words))
            self.notes.update(dict.fromkeys(map(Note, reasons)))

    def run(self) -> Any:
        try:
            with self.backend.current():
                returned = self.launch()
            self.backend.synchronize()
        except Exception as error:
            raise self._failed("launching", error) from error
        return returned

    def take(self, returned: Any) -> None:
        """Takes the arrays that an allocating variant returned, and holds them until after the next launch.

        Raises:
            IncorrectError: an array is not as declared.
        """
        if self.case.variant.allocates:
            self.held = {
                f"the {name} that an earlier launch returned": at for name, at in self.results.items()
            }
            self.adopt(returned)
        self._note_bits()

    def take_timed(self) -> None:
        self.adopt_last()
        self._note_bits()

    def adopt_last(self) -> None:
        """Makes the arrays that were returned last the outputs, without looking at them."""
        self.held = {}
        if self.last_returned is not None:
            self.adopt(self.last_returned)

    def adopt(self, returned: Any) -> None:
        """Makes arrays that were returned the outputs; raises IncorrectError if one is not as declared."""
        self.last_returned = returned
        workspace, specs = self.workspace, self.dataset.specs
        values, spans = _by_name(specs, returned), {}
        for name, spec in specs.items():
            value = values.get(name)  # NumPy's reductions return numbers
            alone = spec.shape == () and is_number(value)
            form = workspace.adopt(name, np.asarray(value) if alone else value)
            if form is None:
                wrong = (
                    f"the launch returned {type_name(value)}, but backend {self.backend.name} "
                    f"takes {type_name(workspace.arrays[name])} only: no subclass, no lazy array, and "
                    "nothing from another device"
                )
                raise IncorrectError(Diagnosis.of(Fault.WRONG_TYPE, wrong, name))
            diagnosis = diagnose_form(name, form, spec)
            if diagnosis is not None:
                raise IncorrectError(diagnosis)
            if not alone:
                spans[name] = form.span
        self.results = spans
        self.inputs = workspace.input_spans()

    def compared(self) -> Iterator[Diagnosis]:
        """Yields what is wrong with outputs beside their references, and keeps the worst error of each."""
        dataset, workspace = self.dataset, self.workspace
        for name, expected in (dataset.expected or {}).items():
            tolerance = dataset.tolerances[name]
            comparison = workspace.compare(name, expected, tolerance)
            worst = self.errors.get(name)
            if worst is None or (comparison.absolute.value > (worst.max_abs or 0)):
                self.errors[name] = comparison.error(tolerance)
            if name in dataset.updated and comparison.mismatches:
                comparison = self._with_unwritten(comparison, name, expected)
            poisoned = name not in dataset.updated
            diagnosis = diagnose_values(name, comparison, tolerance, poisoned=poisoned)
            if diagnosis is not None and self._is_stale(name, tolerance):
                stale = "right for the inputs that the buffers held before, not for those they hold now"
                yield Diagnosis.of(Fault.STALE_RESULT, f"{stale}\n{diagnosis.message}", name)
            elif diagnosis is not None:
                yield diagnosis

    def _with_unwritten(
        self, comparison: Comparison, name: str, expected: np.ndarray[Any, Any]
    ) -> Comparison:
        """Adds which elements of an output's declared part are wrong, and as they were before the launch."""
        dataset, region = self.dataset, self.dataset.specs[name].written
        if region is None:
            return comparison
        actual, tolerance = self.workspace.fetch(name)[region], dataset.tolerances[name]
        with np.errstate(all="ignore"):
            wrong = ~np.isclose(actual, expected[region], tolerance.rtol, tolerance.atol, equal_nan=True)
        left = np.zeros(comparison.shape, bool)
        left[region] = wrong & (actual == dataset.inputs[name][region])
        places = np.flatnonzero(left)
        first = int(places[0]) if places.size else -1
        return dataclasses.replace(comparison, unwritten=int(places.size), first_unwritten=first)

    def _is_stale(self, name: str, tolerance: Tolerance) -> bool:
        """Returns whether an output is right for another set, which the buffers held before."""
        others = (other.expected for other in self.datasets if other is not self.dataset)
        references = (expected[name] for expected in others if expected is not None)
        return any(not self.workspace.compare(name, other, tolerance).mismatches for other in references)

    def written(self) -> Iterator[Written]:
        for name, spec in self.dataset.specs.items() if self.dataset.expected is None else ():
            comparison = self.workspace.compare(name, np.zeros(spec.shape, spec.dtype), Tolerance())
            yield Written(name, comparison.shape, comparison.unwritten, comparison.first_unwritten)

    def digests_before(self) -> dict[str, int]:
        """Returns the digest of the data set, so that we also find inputs changed while preparing."""
        known, kind = self.dataset.digests, type(self.workspace)
        if kind not in known:
            known[kind] = self.workspace.digest_of(self.dataset.inputs)
        return known[kind]

    def digests(self) -> dict[str, int]:
        return self.workspace.digest()

    def outputs(self) -> dict[str, UsersArray]:
        return {name: self.workspace.place(name) for name in self.dataset.specs}

    def bits(self) -> dict[str, str | None]:
        return {name: self.workspace.bits(name) for name in self.dataset.specs}

    def _note_bits(self) -> None:
        """Keeps the hash of each output if the last launch was on the first data set."""
        if self.hashes and self.dataset is self.datasets[0]:
            for name, bits in self.bits().items():
                self.seen_bits.setdefault(name, []).append(bits)

    def note_run(self) -> None:
        if self.case.problem.check is not None:
            outputs = {name: self.workspace.fetch(name) for name in self.dataset.specs}
            self.runs[self.dataset.seed_offset] = Run(self.point, self.dataset.inputs, outputs)

    def _failed(self, doing: str, error: Exception) -> Exception:
        """Returns the error for a variant's exception; what is none of its mistakes stays as it is."""
        if isinstance(error, (*NO_MISTAKES, WroteOutside)):  # the engine tells of writes outside
            return error
        raised = what_raised(error, self.case, f"{doing} {self.case.variant.label}")
        return IncorrectError(Diagnosis.of(Fault.LAUNCH_FAILED, raised))


def giving_back(step: Callable[[], None]) -> Callable[..., None]:
    """Returns the step as the exit of a `with` block; after an error in the block it only adds a note.

    A launch that destroyed the context leaves nothing to free, and its own error is the one to report.
    """

    def end(kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:  # noqa: ARG001
        try:
            step()
        except Exception as another:
            if error is None:
                raise
            error.add_note(f"freeing its memory failed, too: {type(another).__name__}: {another}")

    return end


def check(prepared: Prepared, *, checked_again: bool = False) -> None:
    """Launches the variant on every data set, in the same buffers, and checks each launch.

    The first two launches find outputs filled with different poisons, the third finds the answer of the
    second. So a variant that leaves an element unwritten can be right at most once.

    If it is `checked_again` on other contents after timing, a slow launch on the device is checked on two
    sets. A slow launch on the host is checked on the first set only, or on three if the check is statistical.

    Raises:
        IncorrectError: a check failed; it holds the first fault.
    """
    declared = prepared.determinism is not None
    prepared.hashes = checked_again or declared
    for number, dataset in enumerate(prepared.datasets):
        if number >= _enough(prepared, dataset, checked_again=checked_again):
            break
        if number:
            prepared.turn_to(dataset)
        # The third set finds the answer of the second: a kernel may do its work only where it finds NaN.
        checked_launch(prepared, poisoned=number != len(POISONS) or dataset.expected is None)
        for repeats in range(_LAUNCHES - 1 if declared and not number else 0):
            # A first launch may have compiled, so all but the slowest are repeated once.
            if prepared.is_slow and (repeats or prepared.shortest_call_ns > _VERY_SLOW_NS):
                break
            checked_launch(prepared)
        prepared.note_run()
    _check_runs(prepared)
    _check_under_the_rest(prepared, checked_again=checked_again)


def check_nothing_is_late(prepared: Prepared) -> None:
    """Launches a variant that is not timed once more, to find work that outlives the given stream.

    Timers look for such work too. It cannot be seen on a stream that waits for others by itself, such as
    PyCUDA's, or in a call on host data.

    Raises:
        IncorrectError: outputs were written after the given stream was done.
    """
    backend, variant = prepared.backend, prepared.case.variant
    waits_for_others = not getattr(backend.timed_stream, "is_nonblocking", True)
    call_ns = prepared.shortest_call_ns
    costs_much = call_ns > _VERY_SLOW_NS or launches_cost_much(backend)
    if not backend.on_gpu or variant.host_data or waits_for_others or costs_much:
        return

    def launch() -> None:
        with backend.current():
            returned = prepared.launch()
        if variant.allocates:
            prepared.adopt(returned)

    late = prepared.workspace.written_late(launch, hold_ns=_HOLD_NS + min(call_ns, SLOW_ON_DEVICE_NS))
    if late:
        wrong = (
            "written after the given stream was done; launch on that stream, or make it or the host wait "
            "for the others"
        )
        raise IncorrectError(Diagnosis.of(Fault.STILL_RUNNING, wrong, ", ".join(late)), prepared.errors)


def _check_under_the_rest(prepared: Prepared, *, checked_again: bool) -> None:
    """Launches more where too few contents were met: poisons, an old answer, and numbers if nothing is timed.

    An old answer is tried only if launches are quick. In the simulator a single set belongs to a corner, and
    its variant has met both poisons at its own point. Under a tool of compute-sanitizer no launch is
    repeated: the tool would see the same, slowly.
    """
    if launches_cost_much(prepared.backend):
        return
    count = len(prepared.datasets)
    if count == 1 and not checked_again:
        checked_launch(prepared)
    is_quick = not prepared.is_slow
    if count == len(POISONS) and prepared.dataset.expected and is_quick and prepared.turn_to_others():
        checked_launch(prepared, poisoned=False)
    # A kernel may skip what holds zero, as a mask does; one that is timed meets zeros while it is repeated.
    for _ in range(2 if count > len(POISONS) and is_quick and not checked_again else 0):
        checked_launch(prepared)


def launches_cost_much(backend: Backend) -> bool:
    """Returns whether each launch takes long: in the simulator, and under a tool of compute-sanitizer."""
    return backend.simulated or sanitizing_tool() is not None


def repeat_while_bitwise(prepared: Prepared) -> None:
    """Launches many times on the first data set if all launches on it gave the same bits so far.

    We poison the outputs before each launch and compare them by a hash, taken where they live. A launch that
    differs is compared in full.

    Raises:
        IncorrectError: a launch was wrong, or differs though the variant declares that none does.
    """
    count = worth_repeating(prepared.shortest_call_ns)
    if not (prepared.steady and count):
        return
    prepared.turn_to(prepared.datasets[0])

    def again() -> None:
        prepared.workspace.poison()
        prepared.take(prepared.run())

    repeat_while_steady(prepared, again, most=count)
    prepared.hashes = False  # the last launch is
    check_left(prepared)
    prepared.hashes = True


def turn_to_others_if_slow(prepared: Prepared) -> None:
    """Loads contents for timing a slow launch on the host that it was not checked on; this saves a launch."""
    if prepared.backend.on_gpu or not prepared.is_slow:
        return
    if prepared.case.problem.check is not None:
        unseen = [dataset for dataset in prepared.datasets if dataset.seed_offset not in prepared.runs]
        if unseen:
            prepared.turn_to(unseen[0])
    elif prepared.dataset is prepared.datasets[0]:
        prepared.turn_to_others()


def recheck(sets: list[Prepared], *, launches: bool = True) -> None:
    """Checks what the last timed launches left, then one more launch, on other inputs if there are any.

    A launch that has stopped writing leaves the right answer of an earlier one; the poison shows that. A
    launch that replays an answer is right only for the inputs that it was timed on. We skip the last launch
    if the call takes seconds, or is slow on the host, and more than one set was seen. Such a call was timed
    few times, on poisoned outputs.

    Raises:
        IncorrectError: it is no longer right; the message says that it was before timing.
    """
    first = sets[0]
    try:
        for prepared in sets:
            check_left(prepared)
        first.note_run()
        _check_runs(first)
        if not launches:
            return
        others_unseen = len(first.datasets) > 1 and first.dataset is first.datasets[0]
        slow = first.is_slow and (not first.backend.on_gpu or first.shortest_call_ns > _NOT_AGAIN_NS)
        if others_unseen or not slow:
            for prepared in sets[:CONTENTS]:
                # A slow one saw both poisons before timing, but never the answer of other contents.
                over_an_answer = prepared.turn_to_others() and prepared.is_slow
                checked_launch(
                    prepared, poisoned=not (over_an_answer and prepared.dataset.expected is not None)
                )
            repeat_while_bitwise(first)
    except IncorrectError as error:
        raise error.after(AFTER_TIMING) from error


def _check_runs(prepared: Prepared) -> None:
    """Raises IncorrectError if the problem's statistical check rejects the runs so far."""
    statistical = prepared.case.problem.check
    answer = None if statistical is None else statistical(list(prepared.runs.values()))
    wrong = complaint(answer, prepared.case.problem.error)
    if wrong is not None:
        raise IncorrectError(Diagnosis.of(Fault.STATISTICS, wrong), prepared.errors)


def _enough(prepared: Prepared, dataset: Dataset, *, checked_again: bool) -> float:
    """Returns on how many sets to launch a variant; `dataset` is the next one."""
    statistical = prepared.case.problem.check is not None
    if not prepared.is_slow or (statistical and not checked_again):
        return math.inf
    if not checked_again:
        return len(POISONS)
    if statistical:
        return math.inf if prepared.backend.on_gpu else _RUNS_OF_SLOW
    if dataset.scalars != prepared.dataset.scalars:
        return math.inf
    return 2 if prepared.backend.on_gpu else 1


def frames_of_variant(error: BaseException, case: Case) -> list[traceback.FrameSummary]:
    """Returns the lines of the variant's file that led to an exception, the innermost last."""
    prepare = case.variant.prepare
    source = prepare.__code__.co_filename if prepare is not None else None
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]


def what_raised(error: BaseException, case: Case, doing: str) -> str:
    """Returns what an exception says, with the innermost line of the variant's file, if one led to it."""
    text = why_not_launched(error) or f"{type(error).__name__}: {str(error).strip()}"
    what = "\n".join([text, *getattr(error, "__notes__", ())])
    frames = frames_of_variant(error, case)
    if not frames:
        return f"{doing}: {what}"
    innermost = frames[-1]
    place = place_of(innermost.filename, innermost.lineno or 0)
    return f"{doing}, {place} in {innermost.name}: {what}\n    {innermost.line}"


def _by_name(specs: Mapping[str, Output], returned: Any) -> dict[str, Any]:
    """Returns what a launch returned, by the names of the outputs."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if not (isinstance(returned, (tuple, list)) and len(specs) > 1):
        return dict.fromkeys(list(specs)[:1], returned)
    if len(returned) != len(specs):
        wrong = f"the launch returned {len(returned)} arrays for {len(specs)} outputs: {', '.join(specs)}"
        raise IncorrectError(Diagnosis.of(Fault.WRONG_TYPE, wrong))
    return dict(zip(specs, returned, strict=True))


_SLOW_UNDER_A_TOOL_NS = 2e9
"""After a launch that takes longer under compute-sanitizer we try no further size: it runs the same
instructions. A tool can make launches a thousand times slower."""
_LABELS = {"special": "special values", "exact": "exact integers", "kept": "one input kept"}


@dataclass(frozen=True)
class Corner:
    """Describes a special point, contents or layout on which a variant is checked.

    Attributes:
        label: what is special about it, such as `n=257`; the diagnosis of a failure begins with it.
        point: all axes, and `dtype` if the case has another one.
        contents: `random`, `special`, `exact` or `kept` inputs. `kept` is random inputs, then others with one
            array unchanged, each array in turn, since a variant may remember its result by one input alone.
        layout: one of `memory.LAYOUTS`; None for aligned arrays in C order.
    """

    label: str
    point: Point
    contents: str = "random"
    layout: str | None = None

    @property
    def is_a_size(self) -> bool:
        """Says whether only its size is special, so that no kernel is compiled for it."""
        return self.contents == "random" and self.layout is None and "dtype" not in self.point


def corners_of(case: Case) -> list[Corner]:
    """Returns the corners of a case if it is its variant's first."""
    if not case.first:
        return []
    problem, smoke = case.problem, case.problem.axes.smoke_point
    return [
        *(Corner(_LABELS[contents], smoke, contents) for contents in problem.contents),
        *(Corner(layout, smoke, layout=layout) for layout in case.variant.layouts),
        *(Corner(f"dtype={dtype}", {**smoke, "dtype": dtype}) for dtype in case.variant.dtypes),
        *(Corner(label, point) for label, point in problem.boundary_points(case.parameters)),
    ]


def declared_corners(case: Case) -> tuple[str, ...]:
    """Names the corners of a case's variant, whichever case is its first, and what is in them."""
    problem, variant = case.problem, case.variant
    corners = corners_of(dataclasses.replace(case, first=True))
    specials = problem.specials(problem.axes.smoke_point).items()
    return (
        *(corner.label for corner in corners if variant.limit_exceeded(corner.point) is None),
        *(f"{name}={value:g}" for name, values in specials for value in values),
        *(f"{layout} {name}" for layout in variant.layouts for name in problem.layouts[layout]),
    )


def check_corners(
    case: Case, backend: Backend, placing: Backend, datasets: Datasets
) -> tuple[dict[str, Mapping[str, Contents]], tuple[Note, ...]]:
    """Checks the variant in each corner by one launch on the corner's data.

    Returns label → inputs and references of each corner, and a note for each reason why some were left out:
    in the simulator large ones, and under a tool of compute-sanitizer sizes behind one whose launch was slow.
    The backend `placing` makes the arrays.

    Raises:
        IncorrectError: the variant is wrong in a corner, which the message names first.
    """
    checked: dict[str, Mapping[str, Contents]] = {}
    left_out: dict[str, list[str]] = {}
    tool, slow = sanitizing_tool(), None
    for corner in corners_of(case):
        reason = _why_not_at(corner, case, simulated=backend.simulated) or slow  # sizes come last
        if reason is not None:
            left_out.setdefault(reason, []).append(corner.label)
            continue
        took_ns, checked[corner.label] = _check_at(corner, case, backend, placing, datasets)
        if tool is not None and corner.is_a_size and took_ns > _SLOW_UNDER_A_TOOL_NS:
            slow = f"a launch took {took_ns / 1e9:.1f} s under {tool} at {corner.label}"
    notes = (
        Note(f"not checked at {', '.join(labels)}: {reason}", About.SIZES)
        for reason, labels in left_out.items()
    )
    return checked, tuple(notes)


def _why_not_at(corner: Corner, case: Case, *, simulated: bool) -> str | None:
    exceeded, limits = case.variant.limit_exceeded(corner.point), case.problem.simulator_limits
    if exceeded is not None:
        return f"{exceeded.partition(':')[0]} for the variant"
    if (missing := dtype_missing(corner.point.get("dtype"))) is not None:
        return missing
    too_large = any(corner.point[axis] > most for axis, most in limits.items())
    return "too large for the simulator" if simulated and corner.contents == "random" and too_large else None


def _check_at(
    corner: Corner, case: Case, backend: Backend, placing: Backend, datasets: Datasets
) -> tuple[float, Mapping[str, Contents]]:
    """Checks the variant in one corner.

    Returns how long its last launch took, in nanoseconds, and what it was checked with.
    """
    if corner.contents == "random":
        sets = datasets.for_check(case.problem, corner.point, contents=1, available_bytes=float("inf"))
    else:
        sets = datasets.other(case.problem, corner.point, corner.contents)
    laid_out = {} if corner.layout is None else case.problem.placements(corner.layout, sets[0].arrays)
    workspace = placing.workspace(sets[0].inputs, sets[0].specs, laid_out)
    with ExitStack() as given_back:
        given_back.push(giving_back(workspace.close))
        if corner.contents == "special":  # NumPy warns of them, as it should
            given_back.enter_context(catch_warnings(action="ignore", category=RuntimeWarning))
        try:
            prepared = Prepared(case, corner.point, backend, workspace, sets)
            check(prepared)
        except IncorrectError as error:
            raise error.after(f"{corner.label}: ", _planted(sets[-1])) from error
        prepared.let_go()
        return prepared.shortest_call_ns, sets[0].in_short


def _planted(dataset: Dataset) -> str:
    """Says where special values are, one line for each input."""
    return "".join(
        f"\n  special values in {name}, by flat index: "
        + ", ".join(f"{value:g} at {place}" for place, value in places.items())
        for name, places in dataset.planted.items()
    )
