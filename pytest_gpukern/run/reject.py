"""Whether the checker rejects a variant that is broken on purpose, and for the fault that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.run.prepare import NotRunError, refuse_what_cannot_run
from pytest_gpukern.run.run_case import diagnose_case
from pytest_gpukern.values.options import sanitizing_tool

if TYPE_CHECKING:
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.run.environment import Environment


def why_not_rejected(case: Case, environment: Environment, *, replaceable: bool) -> str | None:
    """Why a broken case was not rejected as it declares, in words; None where it was.

    None also where a tool of compute-sanitizer judges it, which this process is running under: its values
    may be right or wrong.

    Args:
        case: the broken one.
        environment: data sets and backends.
        replaceable: whether another process takes over where this one has lost its CUDA context.

    Raises:
        NotRunError: it cannot run here, with the reason.
    """
    judge = case.variant.detected_by
    if judge is not None and judge != sanitizing_tool():
        raise NotRunError(f"judged by {judge}: --gpukern-sanitize={judge}")
    refuse_what_cannot_run(case, environment)
    if case.variant.loses_context and not replaceable:
        raise NotRunError("it takes the CUDA context along: --gpukern-isolate=on")
    diagnosis = diagnose_case(case, environment)
    if judge is not None:
        return None
    declared = case.variant.expected_fault
    if diagnosis is None:
        return f"{case.id} is broken on purpose ({declared}), and the checker passed it"
    if diagnosis.fault != declared:
        return f"{case.id} was rejected for {diagnosis.fault!s}, not for {declared}\n{diagnosis.message}"
    return None
