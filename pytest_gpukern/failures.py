"""What fails a test at the gate: verdicts, and where a run asks for it, findings besides times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.drift import ACCURACY, BITS, DETERMINISM
from pytest_gpukern.gate import failing
from pytest_gpukern.resources import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpukern.result import Result

_GATE_OF = {RESOURCES: "resources", ACCURACY: "accuracy", BITS: "accuracy", DETERMINISM: "accuracy"}
"""Kind of a finding → what `--gpukern-gate-on` calls it."""


def failures(result: Result, *, strict: bool, gate_on: Collection[str]) -> list[str]:
    """Why a result fails its test, a line each, such as `SLOWER (kernel/cupti/cold): +5.1 % …`.

    Args:
        result: with verdicts and findings.
        strict: whether verdicts that say "don't know" fail.
        gate_on: which of `time` (INVALID too), `resources`, `accuracy` (bits too) and `host`, the times of a
            host variant, fail a test.
    """
    gated = ("time" if result.case.on_gpu else "host") in gate_on
    bad = failing(result, strict=strict, hosts=True) if gated else {}
    lines = [f"{verdict.kind} ({key}): {verdict.explained}" for key, verdict in bad.items()]
    found = [finding for finding in result.findings if _GATE_OF.get(finding.kind) in gate_on]
    return lines + [f"{finding.kind.upper()}: {finding.text}" for finding in found]
