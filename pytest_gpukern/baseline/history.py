"""The recorded sessions of a case with all that they were measured under, as explanations need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.baseline.record import LONGEST_NAME
from pytest_gpukern.gpu.kernel_facts import fitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.baseline.record import (
        Baseline,
        OutputAccuracy,
        RecordedKernel,
        RecordedSession,
        RecordedTime,
    )
    from pytest_gpukern.values.result import JsonDict, KernelFacts

Dimensions = tuple[int, ...]


@dataclass(frozen=True)
class CompiledKernel:
    """What a kernel was compiled to and how it was launched; None for what is not known.

    Attributes:
        name: as its author would write it, shortened as a record has it.
        registers: of a thread.
        spill_bytes: of a thread, stored by its instructions for want of registers.
        local_bytes: of a thread: spilled registers, arrays and the call stack.
        shared_bytes: of a block, static and dynamic.
        grid: blocks in x, y, z.
        block: threads in x, y, z.
        machine_code_sha256: of the code that the device executes.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    spill_bytes: int | None = None
    grid: Dimensions | None = None
    block: Dimensions | None = None
    machine_code_sha256: str | None = None

    @classmethod
    def of_facts(cls, facts: KernelFacts) -> CompiledKernel:
        """A kernel as it was just seen."""
        shape = facts.shape
        return cls(
            name=fitted(facts.readable, LONGEST_NAME),
            registers=shape.registers,
            local_bytes=shape.local_bytes,
            shared_bytes=shape.static_shared_bytes + shape.dynamic_shared_bytes,
            spill_bytes=_spilled(facts.spill_store_bytes, shape.local_bytes),
            grid=shape.grid,
            block=shape.block,
            machine_code_sha256=facts.machine_code_sha256,
        )

    @classmethod
    def of_record(cls, kernel: RecordedKernel) -> CompiledKernel:
        """A kernel as a record has it."""
        return cls(
            name=kernel.name,
            registers=kernel.registers,
            local_bytes=kernel.local_bytes,
            shared_bytes=kernel.shared_bytes,
            spill_bytes=_spilled(kernel.spill_store_bytes, kernel.local_bytes),
            grid=kernel.grid,
            block=kernel.block,
            machine_code_sha256=kernel.machine_code_sha256,
        )


def _spilled(stored_bytes: int | None, local_bytes: int) -> int | None:
    """What is not known of a kernel with local memory is none without."""
    return stored_bytes if local_bytes else 0


@dataclass(frozen=True)
class PastSession:
    """One recorded session of a case, with what the file holds about it elsewhere.

    Attributes:
        fingerprint: device, driver and library versions.
        times: `scope/timer/cache` → time.
        kernels: what the case launched; empty where no timer saw it.
        outputs: output name → accuracy.
        bits: output name → hash of its bytes, for outputs whose hash was taken.
        canaries: name → time of the session's canaries in nanoseconds.
        session: id of the process that measured, the same in all its cases; empty where it is not known.
    """

    fingerprint: JsonDict
    times: Mapping[str, RecordedTime]
    kernels: tuple[CompiledKernel, ...]
    outputs: Mapping[str, OutputAccuracy]
    bits: Mapping[str, str]
    canaries: Mapping[str, float]
    session: str = ""


@dataclass(frozen=True)
class Past:
    """The sessions of one epoch of a case, oldest first.

    Attributes:
        problem_version: the version that was measured.
        measured_point: values of the axes as run.
        sessions: never empty.
    """

    problem_version: int
    measured_point: JsonDict
    sessions: tuple[PastSession, ...]


def past_of(baseline: Baseline, case_id: str, key: str | None = None) -> Past | None:
    """The epoch that a measurement is judged by, or without a `key` the newest; None where there is none.

    Of an epoch, sessions that lack the measurement are left out.
    """
    record = baseline.lookup(case_id)
    if record is None:
        return None
    epoch = record.epochs[-1] if key is None else record.current(key)
    if epoch is None:
        return None
    sessions = [session for session in epoch.sessions if key is None or key in session.measurements]
    return Past(
        epoch.problem_version,
        epoch.measured_point,
        tuple(_past_session(baseline, session) for session in sessions),
    )


def _past_session(baseline: Baseline, session: RecordedSession) -> PastSession:
    entry = baseline.sessions.get(session.session or "")
    return PastSession(
        fingerprint=baseline.fingerprints.get(session.fingerprint, {}),
        times=session.measurements,
        kernels=tuple(CompiledKernel.of_record(kernel) for kernel in session.kernels),
        outputs=session.correctness,
        bits={name: each.bits for name, each in session.correctness.items() if each.bits},
        canaries={name: ns for name, ns in (entry.canaries if entry else {}).items() if ns},
        session=session.session or "",
    )
