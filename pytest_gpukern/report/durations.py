"""Says in one sentence where the time of a run went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpukern.report import units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpukern.report.run import Run

_LEAST_SHARE = 0.01
REST = "pytest and the tests' own code"
"""What is in no phase; the controller of workers adds it, for it knows how many there were."""


def time_spent(run: Run) -> str | None:
    """Returns `time: 193 s: checking 62 s, timing 36 s, …`, the longest phase first; None where unknown.

    Phases below 1 % are left out. Where processes side by side spent more than the run took, it says so.
    """
    if run.duration_s is None:
        return None
    spent_s, whole_s = _known(run.spent_s), run.duration_s
    told = f"time: {_seconds(whole_s)}"
    together_s = sum(spent_s.values())
    if together_s > whole_s:
        told += f", of all processes side by side {_seconds(together_s)}"
    else:
        spent_s[REST] = whole_s - together_s
    return f"{told}: {_phases(spent_s)}"


def _known(spent_s: Mapping[str, float]) -> dict[str, float]:
    return {name: each_s for name, each_s in spent_s.items() if units.is_number(each_s)}


def _phases(spent_s: Mapping[str, float]) -> str:
    least_s = _LEAST_SHARE * sum(spent_s.values())
    ordered = sorted(spent_s.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_seconds(each_s)}" for name, each_s in ordered if each_s >= least_s)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 9.5 else units.time(seconds * 1e9)
