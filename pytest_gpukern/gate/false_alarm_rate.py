"""How often unchanged code is called SLOWER and confirmed, by simulation."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpukern.values.result import Verdict

FALSE_ALARMS: Mapping[float, Mapping[int, float]] = MappingProxyType(
    {
        0.02: {3: 0.0012, 5: 0.0004, 8: 0.0002},
        0.01: {3: 0.0020, 5: 0.0009, 8: 0.0006},
        0.005: {3: 0.0032, 5: 0.0017, 8: 0.0011},
        0.0025: {3: 0.0046, 5: 0.0026, 8: 0.0015},
        0.0: {3: 0.0068, 5: 0.0043, 8: 0.0025},
    }
)
"""Threshold → recorded sessions → share of unchanged cases that are called SLOWER and confirmed.

By `selftest.gate_simulation`, noisy suites: heavy tails, 8 % of the cases with two modes, a common shift.
Of 24 000 quiet kernels none was.
"""

FALSE_ALARMS_OF_PAIRS = 0.0005
"""The same for two pairs of two revisions, confirmed by two fresh ones."""


def false_alarm(recorded: int, threshold: float) -> float:
    """The chance that unchanged code is called SLOWER, by the nearest row and column that promise less."""
    row = FALSE_ALARMS[max(known for known in FALSE_ALARMS if known <= threshold)]
    return row[max(known for known in row if known <= recorded)]


def expected_false_alarms(verdicts: Iterable[Verdict]) -> float:
    """How many of these would be SLOWER, after confirmation, if no code had changed; see `FALSE_ALARMS`."""
    return sum(verdict.false_alarm for verdict in verdicts)
