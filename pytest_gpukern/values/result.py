"""Defines the result of one test, as plain values that travel on the test report.

The process that measures may not be the one that reports. So a `Result` turns into plain JSON (dict, list,
str, float, int, bool, None) and back without loss, and nothing else crosses.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, structs

from pytest_gpukern.values.backend_table import runs_on_gpu
from pytest_gpukern.values.difference import Difference
from pytest_gpukern.values.fingerprint import NO_PROVENANCE, Fingerprint, Provenance
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.stored import Stored
from pytest_gpukern.values.untrusted_json import Figure, Json
from pytest_gpukern.values.verdict_table import VerdictKind

JsonDict = dict[str, Any]
_LARGEST = 2**63 - 1
"""A file may hold a larger number, of which Python makes no float."""
Whole = Annotated[int, Meta(ge=0, le=_LARGEST)]
Value = bool | Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)] | float | str | tuple[str, ...] | None
"""One value that an observer saw, such as a clock; its label and unit are in the row of the observer."""
Observations = dict[str, dict[str, Value]]
"""Name of an observer → name of a figure → its value; what is not known is left out."""


class Correctness(enum.StrEnum):
    """Says whether the outputs of a case agreed with its reference."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    UNCHECKED = "UNCHECKED"
    """Nothing compared the outputs: a plain test that measured and never called `verify`."""


class Determinism(enum.StrEnum):
    """Says how far the bits of an output are the same for the same inputs, code and device."""

    BITWISE = "bitwise"
    """All launches gave the same bits, in this session and in recorded sessions of the same code."""
    RUN_TO_RUN = "run-to-run"
    """All launches of a process gave the same bits, but processes differ: a choice made at start-up."""
    TOLERANT = "tolerant"
    """Launches of one process gave different bits, all within the tolerance: the order of work varies."""


class SessionRole(enum.StrEnum):
    """Says what a session of a test was measured for."""

    MEASURED = "measured"
    """The session that the run reports."""
    FURTHER = "further"
    """One more that was asked for, or that a record or the other side of a comparison needs."""
    CONFIRMING = "confirming"
    """A fresh session that decided about a suspected slowdown."""


class Summary(Stored, frozen=True):
    """Holds the centre of a measurement's samples and how well it is known; times in nanoseconds.

    `low_ns` and `high_ns` bound the median with 95 % confidence for the samples of this session. They say
    nothing about the spread between sessions, which is the gate's business.
    """

    median_ns: Figure
    low_ns: Figure
    high_ns: Figure
    n: Whole
    notes: tuple[Note, ...] = ()

    @property
    def half_width(self) -> float | None:
        """Half the interval relative to the median, 0.0025 for ±0.25 %; None of a single sample."""
        times = (self.median_ns, self.low_ns, self.high_ns)
        if self.n < 2 or not all(ns is not None and math.isfinite(ns) for ns in times):
            return None
        return (self.high_ns - self.low_ns) / 2 / self.median_ns if self.median_ns else math.inf


class KernelFacts(Stored, frozen=True, gc=False):  # nothing in it refers back to it, so no cycle can arise
    """Describes a kernel that a call launches, as a timer sees it or as a record has it.

    Attributes:
        name: name as its author would write it; in a record without parameters if it is long.
        registers: registers of a thread.
        local_bytes: local memory of a thread: spilled registers, arrays and the call stack.
        shared_bytes: shared memory of a block, static and dynamic.
        machine_code_sha256: hash of the code that the device executes, without names (`code:…`), or of the
            whole module (`module:…`); None if the backend cannot give it.
        grid: blocks in x, y, z; None where no timer saw it.
        block: threads in x, y, z; None where no timer saw it.
        symbol: its name as the compiler mangled it; None in a record.
        blocks_per_sm: blocks that fit on a multiprocessor at once; None where its limits are not known.
        occupancy: their share of the warps that a multiprocessor holds; None where that is not known.
        limited_by: why no more blocks fit, in words; None at full occupancy.
        spill_bytes: the part of `local_bytes` that holds spilled registers; None where only a timer saw it.
        stack_bytes: the frame of a thread: spilled registers, arrays, arguments of calls; None if only timed.
        code_bytes: size of its instructions; None where only a timer saw it.
        instructions: class of instructions, and how many are in the code; empty where only a timer saw it.
    """

    name: str
    registers: Whole
    local_bytes: Whole
    shared_bytes: Whole
    machine_code_sha256: str | None = None
    grid: tuple[Whole, Whole, Whole] | None = None
    block: tuple[Whole, Whole, Whole] | None = None
    symbol: str | None = None
    blocks_per_sm: Whole | None = None
    occupancy: float | None = None
    limited_by: str | None = None
    spill_bytes: Whole | None = None
    stack_bytes: Whole | None = None
    code_bytes: Whole | None = None
    instructions: tuple[tuple[str, Whole], ...] = ()

    @property
    def executed(self) -> tuple[object, ...]:
        """What the device executes, whatever the kernel is called."""
        sizes = (self.registers, self.local_bytes, self.shared_bytes)
        return (self.machine_code_sha256, self.grid, self.block, *sizes)

    @property
    def launch(self) -> tuple[object, ...]:
        """What a timer sees of a launch; launches that differ in it are different kernels."""
        return (self.symbol, self.grid, self.block, self.registers, self.shared_bytes, self.local_bytes)


class CompiledCode(Stored, frozen=True):
    """Says what the kernels that a case launches are compiled to for one architecture.

    Attributes:
        compiler: what compiled them, with versions.
        kernels: each kernel in the order of its first launch.
        refused: the compiler's message, if one does not compile for it.
        autotuned: kernel → configuration that an autotuner chose on a device, or the first where that is not
            on record, as texts.
    """

    compiler: str = ""
    kernels: tuple[KernelFacts, ...] = ()
    refused: str = ""
    autotuned: dict[str, dict[str, str]] = {}


class Choice(Stored, frozen=True):
    """Says what a library chose among several ways to run a call; equal where two sessions chose the same.

    Attributes:
        configurations: kernel → names and values, as texts, of what an autotuner chose for it.
        launches: kernel, grid, block and registers of each launch, where no autotuner told what it chose.
    """

    configurations: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    launches: tuple[tuple[object, ...], ...] = ()

    @classmethod
    def of(cls, autotuned: Mapping[str, Mapping[str, str]], kernels: Iterable[KernelFacts]) -> Choice:
        """Returns the choice of a session; `UNKNOWN_CHOICE` for one without either."""
        if autotuned:
            return cls(tuple(sorted((name, tuple(sorted(of.items()))) for name, of in autotuned.items())))
        launches = {(known.name, known.grid or (), known.block or (), known.registers) for known in kernels}
        return cls(launches=tuple(sorted(launches)))


UNKNOWN_CHOICE = Choice()


class HostCopy(Stored, frozen=True):
    """Says where a copy between host and device leads: `HtoD` or `DtoH`, and the host's kind of memory."""

    direction: str
    memory: str


class DeviceWork(Stored, frozen=True):
    """Describes device work of a call: one kernel, its copies in one direction, or its memsets.

    Attributes:
        kind: `kernel`, `memcpy` or `memset`.
        name: the kernel's name as the compiler mangled it, or what is copied from where to where.
        count: how often in a call; a mean if calls differ.
        time_ns: their total time in a call; the median over the calls.
        size_bytes: bytes copied or set in a call; 0 for a kernel.
        kernel: how the kernel was launched and what it needs; None for copies and memsets.
        host_copy: of a copy from or to the host; None for all else.
    """

    kind: str
    name: str
    count: Figure
    time_ns: Figure
    size_bytes: Figure = 0.0
    kernel: KernelFacts | None = None
    host_copy: HostCopy | None = None


class Measurement(Stored, frozen=True):
    """Holds the samples of one case in one scope by one timer under one cache policy.

    Attributes:
        cache: `cold` (the L2 was flushed before each sample) or `hot`.
        iterations: calls in a sample; a sample is their mean.
        measures: what the timer's number contains, in words.
        samples_ns: every sample, in the order taken; none is ever dropped. A record has none.
        quantiles_ns: 5, 25, 50, 75 and 95 % of the samples, in a record.
        mean_ns: mean of the samples, in a record.
        cpu_ns: of a time by the host's clock, the median CPU time of the process in a call, over all its
            threads; None if that is not known.
        stopped: why sampling ended, in words.
        jitter_ns: standard deviation of a session's median from what the timer itself adds.
        fixed_cost_ns: what the timer reads for an empty kernel beyond that kernel's own time, in this
            session; it is not subtracted. None if the timer has no such cost, or does not know it.
        busy_ns: median time that kernels ran in a call; less than the time of the call if there are gaps.
            None if that is not known.
        device_ns: of a time by the host's clock, the median time from the start of a call's first work on the
            device to the end of its last; None if that is not known.
        work: what a call had the device do, in order; empty if that is not known.
        order: what each call had the device do, in order, as places in `work`; empty where calls differ, and
            where the timer does not know.
        does: in a record, a hash of what each call had the device do, in order, where the session's
            `launched` does not say it; None where that is not known.
        buffer_sets: sets of inputs with different contents that were used in turn.
        invalid_samples: number of other samples that we did not use, because the device was not fit.
        traffic_bytes: bytes that the declared work must move, or None.
        flops: floating-point operations of the declared work, or None.
        invalid: why the numbers cannot be trusted, or None.
        observations: what observers saw of it, such as the device's clocks.
    """

    scope: str
    timer: str
    cache: str
    iterations: Whole
    summary: Summary
    measures: str = ""
    samples_ns: tuple[Figure, ...] = ()
    quantiles_ns: tuple[float, float, float, float, float] | None = None
    mean_ns: float | None = None
    cpu_ns: float | None = None
    stopped: str = ""
    jitter_ns: Figure = 0.0
    fixed_cost_ns: float | None = None
    busy_ns: float | None = None
    device_ns: float | None = None
    work: tuple[DeviceWork, ...] = ()
    order: tuple[int, ...] = ()
    does: str | None = None
    buffer_sets: Whole = 1
    invalid_samples: Whole = 0
    traffic_bytes: float | None = None
    flops: float | None = None
    invalid: str | None = None
    observations: Observations = {}

    @property
    def key(self) -> str:
        """`scope/timer/cache`: measurements that differ in one of these are never compared."""
        return f"{self.scope}/{self.timer}/{self.cache}"

    def seen(self, observer: str, figure: str) -> float | None:
        """Returns a number that an observer saw; None for a text, which a run's file of anybody may hold."""
        value = self.observations.get(observer, {}).get(figure)
        return value if isinstance(value, (int, float)) and math.isfinite(value) else None


class DeviceActivity(Stored, frozen=True):
    """Describes one kernel, copy or memset of a traced execution, as CUPTI recorded it.

    Attributes:
        kind: `kernel`, `memcpy` or `memset`.
        name: the kernel's name as its author would write it, `memcpy HtoD` or `memset`.
        start_ns: its start, counted from the start of the first activity.
        end_ns: its end, counted from the same moment.
        device: CUPTI's number of the device in this process.
        context: CUPTI's number of the CUDA context.
        stream: CUPTI's number of the stream.
        size_bytes: bytes copied or set; 0 for a kernel.
        source: kind of memory that is copied from or set, such as `Pageable`; None for a kernel.
        target: kind of memory that is copied to; None for a kernel or a memset.
        grid: blocks in x, y, z; None if it is no kernel, like all below.
        block: threads in x, y, z.
        registers: registers of a thread.
        static_shared_bytes: shared memory of a block that the kernel declares.
        dynamic_shared_bytes: shared memory of a block that its launch adds.
    """

    kind: str
    name: str
    start_ns: Whole
    end_ns: Whole
    device: int
    context: int
    stream: int
    size_bytes: Whole = 0
    source: str | None = None
    target: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: Whole | None = None
    static_shared_bytes: Whole | None = None
    dynamic_shared_bytes: Whole | None = None


class Trace(Stored, frozen=True):
    """Holds what the device did in one more execution of a case, which was not timed.

    Attributes:
        scope: what was executed, such as `kernel`.
        activities: by start.
    """

    scope: str
    activities: tuple[DeviceActivity, ...]


class Contents(Stored, frozen=True):
    """Says what an array holds, so that a record can tell it from another without having it.

    Attributes:
        size: number of elements.
        weighted: sum of elements, each times a fixed weight between -1 and 1; 0 where nobody looked, and None
            where only the norm is kept.
        norm: root of the sum of their squares; 0 where nobody looked, None where it says nothing.
        rtol: of a reference at a corner, the relative tolerance there.
        atol: of a reference at a corner, the absolute tolerance there.
    """

    dtype: str
    size: Whole
    weighted: Figure
    norm: Figure
    rtol: float | None = None
    atol: float | None = None


class Column(Stored, frozen=True):
    """Says what an array holds in each corner, as `Contents` do; once if it is the same in each."""

    dtype: tuple[str, ...]
    size: tuple[Whole, ...]
    norm: tuple[float | None, ...]
    rtol: tuple[float | None, ...]
    atol: tuple[float | None, ...]

    def at(self, place: int) -> Contents:
        parts = (
            of or (empty,) for of, empty in zip(structs.astuple(self), ("", 0, None, None, None), strict=True)
        )
        dtype, size, *numbers = (of[place % len(of)] for of in parts)
        return Contents(dtype, size, None, *numbers)  # type: ignore[arg-type]


def in_columns(corners: Sequence[Mapping[str, Contents]]) -> dict[str, Column]:
    """Returns array → what it holds in each corner, in short; nothing if their arrays are not the same."""
    if len({frozenset(held) for held in corners}) != 1:
        return {}
    found = dict[str, Column]()
    for name in corners[0]:
        numbers = [[of[name].norm, of[name].rtol, of[name].atol] for of in corners]
        short = [[number and float(f"{number:.6g}") for number in row] for row in numbers]
        rows = [(of[name].dtype, of[name].size, *row) for of, row in zip(corners, short, strict=True)]
        parts = zip(*rows, strict=True)
        found[name] = Column(*(part if len({*part}) > 1 else part[:1] for part in parts))
    return found


class OutputError(Stored, frozen=True):
    """Says how far one output was from its reference.

    Attributes:
        size: number of elements compared.
        mismatches: number of elements outside the tolerance.
        max_abs: largest |actual − expected|, or None if nothing finite was compared.
        max_rel: largest |actual − expected| / |expected| over non-zero expected values.
        max_ulp: largest distance in units in the last place of the output's dtype; None for integers.
        bits: hash of the output's bytes for the first data set, or None where it was not taken.
        determinism: `bitwise`, `run-to-run` or `tolerant` (see `Determinism`), or None where that
            was not looked at.
        rtol: the relative tolerance that the test declares, or None where no tolerance judges the output.
        atol: the absolute tolerance; None where no tolerance judges the output.
        dtype: of the output, as NumPy names it, or None where that is not known.
        reference: what it was compared with first, or None where that is not known.
    """

    size: Whole
    mismatches: Whole
    max_abs: float | None
    max_rel: float | None
    max_ulp: float | None
    bits: str | None = None
    determinism: str | None = None
    rtol: float | None = None
    atol: float | None = None
    dtype: str | None = None
    reference: Contents | None = None


class Declaration(Stored, frozen=True):
    """Holds what a test declares of how it is checked and judged, beside tolerances.

    Attributes:
        outputs: declared output → how many of its elements a launch has to write; 0 if it updates them.
        inputs: input array → what it holds, of a case in its first set; of a call only dtype and size.
        input_sets: how many different inputs are timed in turn; 0 where memory or a slow call decides that.
        corners: where a case's variant is to be checked besides at the sizes of the run, with each special
            value and each array of a layout.
        scopes: what is timed where the run does not choose, and how, if the test says that.
        work: `bytes` and `flops` of a call, by which too short a time is impossible; 0 where not declared.
        must_fail: how many comparisons of a plain test have to find a mistake.
        guarded: how many arrays of a plain test lie between guard zones, as it asked.
        in_order: of how many outputs a returned array has to be in C order.
        has_check: whether a function of the test's, `check=`, judges.
        lower_precision: whether a tolerance may pass the next lower precision.
        threshold: the smallest change that counts, where the test says so.
        determinism: what it promises of the bits, or None.
    """

    outputs: dict[str, Whole] = {}
    inputs: dict[str, Contents] = {}
    input_sets: Whole = 0
    corners: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    work: dict[str, float] = {}
    must_fail: Whole = 0
    guarded: Whole = 0
    in_order: Whole = 0
    has_check: bool = False
    lower_precision: bool = False
    threshold: float | None = None
    determinism: Determinism | None = None


class Verdict(Stored, frozen=True):
    """Says how one measurement compares with the record, with the reason in words.

    Attributes:
        ratio: new time ÷ recorded time.
        ratio_low: lower end of its 90 % interval.
        ratio_high: upper end.
        detectable: the ratio that this much measuring would call SLOWER with a probability of 95 %.
        gates: whether it may fail its test; False where the record is too thin for that.
        suspected: it is SLOWER by the measurement that raised the suspicion, and has not been confirmed.
        sessions: fresh sessions that the ratio rests on.
        anchor: time now ÷ the record's first epoch, where that is not the one it was judged by.
        differences: what else changed since the record, or did not though it might have.
        false_alarm: the chance that unchanged code is confirmed SLOWER; 0 where it cannot fail its test.
        threshold: smallest change that counts, 0.02 for 2 %; None where nothing was compared.
        pairs: of two revisions, the medians in nanoseconds of (base, head) in neighbouring sessions.
        others_share: which share of the host's CPUs other programs used, where that leaves it UNDECIDED.
        unconfirmed: whether it was suspected to be SLOWER, and fresh sessions did not confirm it.
        other_card: whether no session that it was compared with is of the same card.
    """

    kind: VerdictKind
    reason: str
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    detectable: float | None = None
    gates: bool = True
    suspected: bool = False
    sessions: Whole = 1
    anchor: float | None = None
    differences: tuple[Difference, ...] = ()
    false_alarm: Figure = 0.0
    threshold: float | None = None
    pairs: tuple[tuple[Figure, Figure], ...] = ()
    others_share: float | None = None
    unconfirmed: bool = False
    other_card: bool = False

    def adding(self, *words: str, **changes: Any) -> Verdict:
        """Returns the verdict with more to say, and with other fields changed."""
        return structs.replace(self, reason="; ".join([self.reason, *words]), **changes)

    @property
    def explained(self) -> str:
        causes = "; ".join(str(difference) for difference in self.differences if difference.is_cause)
        parts = [self.reason, *(str(same) for same in self.differences if not same.is_cause)]
        return "; ".join(parts) + (f"; because: {causes}" if causes else "")


class Finding(Stored, frozen=True):
    """Describes something found besides times, mostly by comparing with the record.

    Attributes:
        kind: such as `memory`; a row of `failure_table.FAILURES` may name it.
        text: what changed or is wrong, with both values.
    """

    kind: str
    text: str


class GateFailure(Stored, frozen=True):
    """Holds one reason why the gate fails a test.

    Attributes:
        kind: word of a verdict, kind of a finding, or `unchecked`.
        key: `scope/timer/cache` of the measurement that a verdict is about; else empty.
    """

    kind: str
    text: str
    key: str = ""

    def __str__(self) -> str:
        """Returns a line such as `SLOWER (kernel/cupti/cold): +5.1 % …`."""
        return f"{self.kind.upper()}{f' ({self.key})' if self.key else ''}: {self.text}"


class CaseInfo(Stored, frozen=True):
    """Says which case a result belongs to, without the code behind it.

    Attributes:
        id: the pytest id, the baseline key and the report row.
        problem: the problem's name; for a plain test, the path of its module from the repository's root.
        problem_version: raised by the author when the problem's inputs or work change.
        variant: name of the implementation; for a plain test, the test's name.
        backend: library the variant is written with; None for a plain test.
        point: values of the problem's axes.
        parameters: the variant's own parameters, such as a block size.
        baseline_dir: folder of the stored baselines that belong to the test, as an absolute path.
        baseline_name: stem of the baseline file beside the test: the problem's or the test module's name.
    """

    id: str
    problem: str
    problem_version: int
    variant: str
    backend: str | None
    point: dict[str, Json]
    parameters: dict[str, Json]
    baseline_dir: str
    baseline_name: str

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU's work is timed: true for a plain test, and for every backend that runs there."""
        return runs_on_gpu(self.backend)

    @property
    def label(self) -> str:
        """The variant's backend and name, as in `host.numpy`; the name alone for a plain test."""
        return f"{self.backend}.{self.variant}" if self.backend else self.variant

    @property
    def sizes(self) -> dict[str, str]:
        """Axis or parameter → its value as text."""
        return {name: str(value) for name, value in (self.point | self.parameters).items()}


def sizes_text(sizes: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


class Result(Stored, frozen=True):
    """Holds everything that reports, baselines and pytest-benchmark need to know about one test.

    Attributes:
        unchecked: the declared outputs of a plain test that nothing compared with a reference.
        diagnosis: what was wrong with the outputs, or None.
        errors: output name → how far it was from its reference.
        first_call_ns: wall time of the first call, compilation included, or None.
        compile_ns: how much longer the first call took than the shortest that was not timed: compiling,
            loading and first allocations; None where that is not known.
        measurements: one a scope.
        kernels: what a call launches, where a timer saw it.
        launched: in a record, the place in `kernels` of each launch of a call, in order.
        autotuned: kernel → configuration that an autotuner chose for it, as texts.
        dtype: what the work computes in, as NumPy names it, or None.
        ceilings: the best that the device was seen to do (as in `Ceilings`); empty where there is none.
        verdicts: `scope/timer/cache` → how the measurement compares with the record.
        speedup_against: `backend.variant` that speed-ups refer to, or None.
        session: id of the process that measured, the same for all its results.
        recorded: in a record, when it was recorded, as an ISO 8601 time with its offset.
        canaries: name → median time in nanoseconds of the fixed kernels that every session on a GPU measures.
        corners: where it was checked besides its own point, such as `n=257`; it was not timed there.
        held: `input x` or `y` → what the input, or the reference of the output, held in each corner.
        seed: of its inputs, where a run gave one.
        observations: what observers saw around the test, such as device memory.
        trace: what one execution did, in a run with `--gpukern-trace`, or None.
        inputs: hash of the inputs that a case was timed on, or None.
        scalars: hash of the scalar arguments of a case's launches, and of which arrays they get; None where
            they differ or are not known, or where a kernel may read other memory.
        files: hash of the project's files that the test loads, or None where they are not all known.
        declared: what its test declares of its checks, or None where that is not known.
        code: architecture → what its kernels are compiled to, in a run with `--gpukern-code`. Verdicts on
            that have the architecture as their key.
    """

    case: CaseInfo
    nodeid: str
    fingerprint: Fingerprint
    simulated: bool
    correctness: Correctness = Correctness.UNCHECKED
    diagnosis: str | None = None
    errors: dict[str, OutputError] = {}
    first_call_ns: float | None = None
    compile_ns: float | None = None
    measurements: tuple[Measurement, ...] = ()
    kernels: tuple[KernelFacts, ...] = ()
    launched: tuple[Whole, ...] = ()
    autotuned: dict[str, dict[str, str]] = {}
    dtype: str | None = None
    ceilings: dict[str, float | None] = {}
    verdicts: dict[str, Verdict] = {}
    speedup_against: str | None = None
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    session: str = ""
    recorded: str = ""
    role: SessionRole = SessionRole.MEASURED
    canaries: dict[str, float | None] = {}
    corners: tuple[str, ...] = ()
    held: dict[str, Column] = {}
    seed: int | None = None
    observations: Observations = {}
    trace: Trace | None = None
    inputs: str | None = None
    scalars: str | None = None
    files: str | None = None
    unchecked: tuple[str, ...] = ()
    provenance: Provenance = NO_PROVENANCE
    declared: Declaration | None = None
    code: dict[str, CompiledCode] = {}

    def time(self, key: str) -> Measurement | None:
        """Returns its measurement under `scope/timer/cache`, or None."""
        return next((timed for timed in self.measurements if timed.key == key), None)

    @property
    def device(self) -> str | None:
        """UUID of the device that its times are of; None for the host's, or where it is not known."""
        return self.fingerprint.device_uuid if self.case.on_gpu else None

    @property
    def valid(self) -> bool:
        """Whether its times say something: correct, measured cleanly and on real hardware."""
        return (
            self.correctness is not Correctness.INCORRECT
            and not self.simulated
            and bool(self.measurements)
            and all(measurement.invalid is None for measurement in self.measurements)
        )


def machine_code(kernels: Iterable[KernelFacts]) -> tuple[str, ...] | None:
    """Returns the hash of each kernel's machine code, sorted; None without any, or where one is not known.

    Kernels are not told by their launches, which may differ where the code is the same.
    """
    named = {(kernel.name, kernel.machine_code_sha256) for kernel in kernels}
    known = sorted(code for _, code in named if code is not None)
    return tuple(known) if known and len(known) == len(named) else None


def hash_method(text: str) -> str:
    """Returns the method of a hash of bits or of machine code, which stands in front of it, or nothing.

    Hashes by different methods differ for equal contents, so they must not be compared.
    """
    return text.rpartition(":")[0]


def of_launches(bits: Sequence[str | None]) -> Determinism | None:
    """Returns what launches of one process on the same inputs show, by an output's hash after each.

    Returns None for fewer than two launches, or if one could not be hashed. `BITWISE` rests on these launches
    only: more of them, or later sessions, may find a rare difference.
    """
    if len(bits) < 2 or None in bits:
        return None
    return Determinism.BITWISE if len(set(bits)) == 1 else Determinism.TOLERANT


def of_sessions(sessions: Iterable[tuple[str | None, str | None]]) -> Determinism | None:
    """Returns what sessions with the same inputs and machine code show, by what each found and its hash.

    Returns None if no session looked. A session that found `TOLERANT` decides. Else it is `RUN_TO_RUN` if
    hashes by one method differ between sessions.
    """
    looked = [(kind, bits) for kind, bits in sessions if kind is not None]
    kinds = {kind for kind, _ in looked}
    if not kinds:
        return None
    if Determinism.TOLERANT in kinds:
        return Determinism.TOLERANT
    hashes = {bits for _, bits in looked if bits is not None}
    differ = len(hashes) > len(set(map(hash_method, hashes)))
    return Determinism.RUN_TO_RUN if differ or Determinism.RUN_TO_RUN in kinds else Determinism.BITWISE
