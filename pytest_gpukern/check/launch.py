"""Launches a variant once on what its buffers hold, and checks everything about that launch."""

from __future__ import annotations

import dataclasses
import sysconfig
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.backends.foreign_array import why_lazy
from pytest_gpukern.check.call_arguments import leaves
from pytest_gpukern.check.diagnosis import (
    Diagnosis,
    Fault,
    IncorrectError,
    diagnose_aliasing,
    diagnose_damage,
    diagnose_form,
    diagnose_values,
)
from pytest_gpukern.gpu.live_threads import running_threads, still_running, threads_left, wait_for
from pytest_gpukern.package import FOLDER
from pytest_gpukern.problems.call_by_name import call_by_name
from pytest_gpukern.values.determinism import of_launches

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pytest_gpukern.arrays.compare import Comparison, Tolerance
    from pytest_gpukern.arrays.memory import Span
    from pytest_gpukern.backends.backend import Backend, Workspace
    from pytest_gpukern.problems.call_by_name import Point
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.problems.dataset import Dataset
    from pytest_gpukern.problems.problem import Output, Run
    from pytest_gpukern.values.determinism import Determinism
    from pytest_gpukern.values.result import OutputError


SLOW_ON_HOST_NS = 5e7
SLOW_ON_DEVICE_NS = 2e7
"""A longer call has warmed up everything while it was checked, and is repeated as rarely as possible."""


@dataclass
class Prepared:
    """Holds a variant that is ready to be launched on a data set in its workspace.

    Attributes:
        launch: exactly what is timed.
        dataset: what the buffers hold now.
        datasets: all sets that it is checked on, in that order.
        errors: worst error of each output so far.
        seen_bits: hashes of each output, one for each launch on the first data set that we hashed.
        first_call_ns: wall time of the first launch, compiling and loading included.
        last_call_ns: wall time of the last checked launch.
        last_returned: what the last launch of an allocating variant returned, held as a caller would.
        returned_spans: addresses of the arrays in it.
        runs: launches for a statistical check, by the `seed_offset` of their set.
        notes: what is worth saying about its launches though nothing is wrong.
    """

    case: Case
    backend: Backend
    workspace: Workspace
    launch: Callable[[], Any]
    dataset: Dataset
    datasets: list[Dataset] = field(default_factory=list)
    errors: dict[str, OutputError] = field(default_factory=dict)
    seen_bits: dict[str, list[str | None]] = field(default_factory=dict)
    first_call_ns: float | None = None
    last_call_ns: float | None = None
    last_returned: Any = None
    returned_spans: dict[str, Span] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def determinism(self) -> dict[str, Determinism | None]:
        """The determinism of each output, as far as its hashes show it."""
        return {name: of_launches(bits) for name, bits in self.seen_bits.items()}

    @property
    def errors_with_bits(self) -> dict[str, OutputError]:
        """The worst error of each output, with its hash for the first data set and its determinism."""
        first = self.datasets[0]
        comparable = first.expected is not None and first.seed is None
        determinism = self.determinism
        return {
            name: dataclasses.replace(
                error,
                bits=next(iter(self.seen_bits.get(name, ())), None) if comparable else None,
                determinism=determinism.get(name),
            )
            for name, error in self.errors.items()
        }

    def note_bits(self) -> None:
        """Keeps the hash of each output if the last launch was on the first data set."""
        if self.dataset is self.datasets[0]:
            for name in self.dataset.specs:
                self.seen_bits.setdefault(name, []).append(self.workspace.bits(name))

    def let_go(self) -> None:
        """Drops what the launch returned or holds, so that its memory can be freed."""
        self.launch, self.last_returned = _given_back, None


def _given_back() -> None:
    """Replaces a launch whose arrays are gone."""
    raise RuntimeError("the arrays of this case were given back")


def prepare(case: Case, point: Point, backend: Backend, workspace: Workspace, dataset: Dataset) -> Prepared:
    """Calls the variant's untimed part; raises IncorrectError if it raises or returns no function."""
    variant = case.variant
    assert variant.prepare is not None
    available = {**case.problem.named(point), **case.parameters, **workspace.arrays, "stream": backend.stream}
    try:
        with backend.preparing():
            launch = call_by_name(variant.prepare, available)
    except Exception as error:
        raise _launch_failed(case, "preparing", error) from error
    if not callable(launch):
        raise IncorrectError(
            Diagnosis(
                Fault.WRONG_TYPE,
                f"{variant.label} returned {type(launch).__name__}; it must return the function to time",
            )
        )
    return Prepared(case, backend, workspace, launch, dataset)


def turn_to(prepared: Prepared, point: Point, dataset: Dataset) -> None:
    """Puts other contents into the buffers, and prepares the variant anew if scalars differ."""
    workspace = prepared.workspace
    if dataset.scalars != prepared.dataset.scalars:
        # Before the arrays are loaded, so that a variant that computes while preparing is wrong.
        workspace.arrays.update(dataset.scalars)
        prepared.launch = prepare(prepared.case, point, prepared.backend, workspace, dataset).launch
    workspace.fill(dataset.inputs)
    prepared.dataset = dataset


def is_slow(prepared: Prepared) -> bool:
    """Says whether the last launch was slow for a device, or for the host."""
    limit_ns = SLOW_ON_DEVICE_NS if prepared.backend.on_gpu else SLOW_ON_HOST_NS
    return (prepared.last_call_ns or 0.0) > limit_ns


def load_other_contents(prepared: Prepared) -> list[Dataset]:
    """Puts other contents with the same scalars into the buffers, if there are any.

    Returns the set that the buffers held before; nothing if they still hold it.
    """
    before = prepared.dataset
    for other in prepared.datasets:
        if other is not before and other.scalars == before.scalars:
            prepared.workspace.fill(other.inputs)
            prepared.dataset = other
            return [before]
    return []


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


def checked_launch(
    prepared: Prepared, earlier: list[Dataset] | None = None, *, poisoned: bool = True
) -> None:
    """Poisons the outputs, launches once and checks outputs, inputs and what lies around them.

    Args:
        prepared: the variant.
        earlier: sets that the same buffers held before; a result that fits one of them is stale.
        poisoned: whether to poison the outputs; else they still hold the answer for other contents.

    Raises:
        IncorrectError: something is wrong.
    """
    workspace, backend = prepared.workspace, prepared.backend
    if poisoned:
        workspace.poison()
    before = _digest_of_contents(prepared)
    backend.synchronize()
    threads, first = running_threads(), prepared.first_call_ns is None
    start = time.perf_counter_ns()
    returned = launched(prepared)
    prepared.last_call_ns = float(time.perf_counter_ns() - start)
    if first:
        prepared.first_call_ns = prepared.last_call_ns
    left = threads_left(threads, first=first)
    earlier_spans = prepared.returned_spans
    if prepared.case.variant.allocates:
        adopt(prepared, returned)
    seen = {name: workspace.bits(name) for name in prepared.dataset.specs} if left else {}
    check_guards(prepared)
    changed = [name for name, digest in workspace.digest().items() if digest != before[name]]
    try:
        check_outputs(prepared, earlier or [])
    except IncorrectError as error:
        if not left:
            raise
        raise left_to_threads(still_running(left, "the launch"), error.diagnosis.message) from error
    if left:
        told = still_running(left, "the launch")
        wait_for(left)
        backend.synchronize()
        late = [name for name, bits in seen.items() if workspace.bits(name) != bits]
        if late:
            raise left_to_threads(told, f"{', '.join(late)} changed after the launch had returned")
        if any(thread.is_alive() for thread in left):
            prepared.notes[told] = None
    if changed:
        raise IncorrectError(
            Diagnosis(
                Fault.INPUT_MODIFIED, f"{Fault.INPUT_MODIFIED}: the launch changed {', '.join(changed)}"
            ),
            prepared.errors,
        )
    if prepared.case.variant.allocates:
        # Last, since shared memory more often explains a stale result than the other way round.
        diagnosis = diagnose_aliasing(prepared.returned_spans, {}, earlier_spans)
        if diagnosis is not None:
            raise IncorrectError(diagnosis, prepared.errors)


def launched(prepared: Prepared) -> Any:
    """Launches once, waits, and returns what the launch returned; raises IncorrectError if it failed."""
    try:
        with prepared.backend.current():
            returned = prepared.launch()
        prepared.backend.synchronize()
    except Exception as error:
        raise _launch_failed(prepared.case, "launching", error) from error
    for name, value in leaves("returned", returned):
        lazy = why_lazy(value)
        if lazy is not None:
            told = f"{name}: {Fault.WRONG_TYPE}: the launch returned {lazy}"
            raise IncorrectError(Diagnosis(Fault.WRONG_TYPE, told))
    return returned


def left_to_threads(told: str, wrong: str) -> IncorrectError:
    """Returns the error of a launch whose threads work on after it has returned."""
    remedy = "a launch must do its own work, or join the threads that do it"
    return IncorrectError(Diagnosis(Fault.STILL_RUNNING, f"{told}; {remedy}\n{wrong}"))


def check_guards(prepared: Prepared) -> None:
    """Raises IncorrectError if something was written out of bounds; the device must be idle."""
    diagnosis = diagnose_damage(prepared.workspace.damage())
    if diagnosis is not None:
        raise IncorrectError(diagnosis, prepared.errors)


def _digest_of_contents(prepared: Prepared) -> dict[str, int]:
    """Returns the digest of the data set, so that we also find inputs changed while preparing."""
    workspace, dataset = prepared.workspace, prepared.dataset
    known = dataset.digests.get(type(workspace))
    if known is None:
        known = dataset.digests[type(workspace)] = workspace.digest_of(dataset.inputs)
    return known


def check_outputs(prepared: Prepared, earlier: list[Dataset] | None = None) -> None:
    """Raises IncorrectError if an output does not meet the reference for the current inputs."""
    dataset = prepared.dataset
    if dataset.expected is None:
        _check_written(prepared)
        return
    for name, expected in dataset.expected.items():
        tolerance = dataset.tolerances[name]
        comparison = prepared.workspace.compare(name, expected, tolerance)
        worst = prepared.errors.get(name)
        if worst is None or (comparison.absolute.value > (worst.max_abs or 0)):
            prepared.errors[name] = comparison.error
        updated, told = name in dataset.updated, ""
        if updated and comparison.mismatches:
            found = prepared.workspace.fetch(name)
            comparison, told = with_what_was_there(comparison, found, dataset, name, tolerance)
        diagnosis = diagnose_values(name, comparison, tolerance, poisoned=not updated)
        if diagnosis is None:
            continue
        diagnosis = Diagnosis(diagnosis.fault, f"{diagnosis.message}{told}")
        for old in earlier or []:
            if (
                old.expected is not None
                and not prepared.workspace.compare(name, old.expected[name], tolerance).mismatches
            ):
                diagnosis = Diagnosis(
                    Fault.STALE_RESULT,
                    f"{name}: {Fault.STALE_RESULT}: right for the inputs that the buffers held before, "
                    f"not for those they hold now\n{diagnosis.message}",
                )
        raise IncorrectError(diagnosis, prepared.errors)


def with_what_was_there(
    comparison: Comparison,
    found: np.ndarray[Any, Any],
    dataset: Dataset,
    name: str,
    tolerance: Tolerance,
) -> tuple[Comparison, str]:
    """Returns the comparison of an updated output with its unwritten elements, and more lines about it.

    An element of the declared part is unwritten if it is wrong and unchanged by the launch.
    """
    import numpy as np

    assert dataset.expected is not None
    before, expected, spec = dataset.inputs[name], dataset.expected[name], dataset.specs[name]
    with np.errstate(all="ignore"):
        wrong = ~np.isclose(found, expected, tolerance.rtol, tolerance.atol, equal_nan=True)
    left = wrong & (found == before)
    if spec.written is None:
        count = int(left.sum())
        return comparison, f"\n  {count} of them still hold what the launch found there" if count else ""
    wrong[spec.written] = False
    places, beyond = np.flatnonzero(left), int(wrong.sum())
    if places.size:
        comparison = dataclasses.replace(
            comparison, unwritten=int(places.size), first_unwritten=int(places[0])
        )
    return comparison, f"\n  {beyond} of them are outside written=" if beyond else ""


def _check_written(prepared: Prepared) -> None:
    """Raises IncorrectError if an output without a reference still holds poison."""
    import numpy as np

    from pytest_gpukern.arrays.compare import Tolerance

    for name, spec in prepared.dataset.specs.items():
        other = np.zeros(spec.shape, spec.dtype)
        comparison = prepared.workspace.compare(name, other, Tolerance())
        if comparison.unwritten:
            raise IncorrectError(
                Diagnosis(
                    Fault.NOT_WRITTEN,
                    f"{name}: {Fault.NOT_WRITTEN}: {comparison.unwritten} of {comparison.size} elements",
                )
            )


def adopt(prepared: Prepared, returned: Any) -> None:
    """Takes the arrays that an allocating variant returned, and holds them until after the next launch.

    Raises:
        IncorrectError: type, shape, dtype or order is not as declared, or an array shares memory with an
            input or another output.
    """
    prepared.last_returned = returned
    workspace, specs = prepared.workspace, prepared.dataset.specs
    values = _by_name(specs, returned)
    for name, spec in specs.items():
        form = workspace.adopt(name, values.get(name))
        if form is None:
            raise IncorrectError(
                Diagnosis(
                    Fault.WRONG_TYPE,
                    f"{name}: {Fault.WRONG_TYPE}: the launch returned {_named(type(values.get(name)))}, "
                    f"but backend {prepared.backend.name} takes {_named(workspace.array_type)} only: no "
                    "subclass, no lazy array, and nothing from another device",
                )
            )
        diagnosis = diagnose_form(name, form.shape, form.dtype, spec, form.strides)
        if diagnosis is not None:
            raise IncorrectError(diagnosis)
    spans = {name: workspace.returned_span(name) for name in specs}
    diagnosis = diagnose_aliasing(spans, workspace.input_spans(), {})
    if diagnosis is not None:
        raise IncorrectError(diagnosis)
    prepared.returned_spans = spans


def _launch_failed(case: Case, doing: str, error: Exception) -> Exception:
    """Returns the error for a variant's exception; a feature that the simulator lacks stays its own error."""
    from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported

    if isinstance(error, SimulatorUnsupported):
        return error
    doing = f"{doing} {case.variant.label}"
    return IncorrectError(
        Diagnosis(Fault.LAUNCH_FAILED, f"{Fault.LAUNCH_FAILED}: {what_raised(error, case, doing)}")
    )


def what_raised(error: BaseException, case: Case, doing: str) -> str:
    """Returns what an exception says, with the innermost line of user code that led to it, if any.

    User code is the variant's file, and files outside Python, this package and installed libraries.
    """
    prepare = case.variant.prepare
    own = prepare.__code__.co_filename if prepare is not None else None
    paths = sysconfig.get_paths()
    others = (FOLDER, *(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")))

    def is_users(path: Path) -> bool:
        return str(path) == own or (path.is_file() and not any(each in path.parents for each in others))

    users = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(Path(frame.filename))]
    what = f"{type(error).__name__}: {error}"
    if not users:
        return f"{doing}: {what}"
    last = users[-1]
    path = Path(last.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{doing}, {shown}:{last.lineno} in {last.name}: {what}\n    {last.line}"


def _by_name(specs: Mapping[str, Output], returned: Any) -> dict[str, Any]:
    """Returns what a launch returned, by the names of the outputs."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if not (isinstance(returned, tuple) and len(specs) > 1):
        return dict.fromkeys(list(specs)[:1], returned)
    if len(returned) != len(specs):
        raise IncorrectError(
            Diagnosis(
                Fault.WRONG_TYPE,
                f"{Fault.WRONG_TYPE}: the launch returned {len(returned)} arrays for "
                f"{len(specs)} outputs: {', '.join(specs)}",
            )
        )
    return dict(zip(specs, returned, strict=True))


def _named(kind: type) -> str:
    """Names a type with its module, since several libraries have an `ndarray`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
