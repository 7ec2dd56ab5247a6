"""What fails a test at the gate: verdicts, and where a run asks for it, findings besides times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.findings.accuracy_drift import ACCURACY, BITS, DETERMINISM
from pytest_gpukern.findings.resource_growth import RESOURCES
from pytest_gpukern.gate.judge import failing
from pytest_gpukern.measure.device_memory import MEMORY
from pytest_gpukern.values.result import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpukern.values.result import Result

_GATE_OF = {
    RESOURCES: "resources",
    ACCURACY: "accuracy",
    BITS: "accuracy",
    DETERMINISM: "accuracy",
    MEMORY: "memory",
}
"""Kind of a finding → what `--gpukern-gate-on` calls it."""

_SINCE_THE_RECORD = (RESOURCES, ACCURACY, BITS, DETERMINISM)


def failures(result: Result, *, strict: bool, gate_on: Collection[str], accepts: bool = False) -> list[str]:
    """Why a result fails its test, a line each, such as `SLOWER (kernel/cupti/cold): +5.1 % …`.

    Args:
        result: with verdicts and findings.
        strict: whether verdicts that say "don't know" fail.
        gate_on: which of `time` (INVALID too), `resources`, `accuracy` (bits too), `memory` and `host`, the
            times of a host variant, fail a test.
        accepts: whether the run opens an epoch for what it measures: what became slower or grew since the
            last one is reported, and only what is INVALID fails.
    """
    gated = ("time" if result.case.on_gpu else "host") in gate_on
    bad = failing(result, strict=strict, hosts=True) if gated else {}
    if accepts:
        bad = {key: verdict for key, verdict in bad.items() if verdict.kind is VerdictKind.INVALID}
    lines = [f"{verdict.kind} ({key}): {verdict.explained}" for key, verdict in bad.items()]
    told = [each for each in result.findings if not accepts or each.kind not in _SINCE_THE_RECORD]
    found = [finding for finding in told if _GATE_OF.get(finding.kind) in gate_on]
    return lines + [f"{finding.kind.upper()}: {finding.text}" for finding in found]
