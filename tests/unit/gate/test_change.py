"""Checks changes with known errors: what settles them, what is measured again, and how they are written."""

from __future__ import annotations

import math

import pytest

from pytest_gpukern.gate.change import Change, numbers, percent, ratio_of, settling_words
from pytest_gpukern.gate.spread import CaseSpread

LIMIT = math.log(1.02)
TOO_NEAR = "20 sessions would not settle it: too near the threshold for this noise"


def known(delta, sigma, fresh=1, recorded=1, **changes):
    """A change whose spread between sessions is known, so that quantiles are normal: 1.645 and 1.960."""
    return Change(delta, CaseSpread(sigma**2, 1e9), fresh, recorded, **changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # below the threshold 1.645·σ·√(1/fresh + 1/recorded) has to fit in between
        (known(0, 0.02), "6 recorded and 6 fresh sessions"),
        (known(0, 0.02, recorded=10), "10 recorded and 4 fresh sessions"),
        (known(0, 0.02, fresh=4, recorded=10), "10 recorded and 4 fresh sessions"),
        (known(0, 0.02, fresh=12), "4 recorded and 12 fresh sessions"),
        (known(0, 0.038), "20 recorded and 20 fresh sessions"),
        (known(0, 0.039), f'{TOO_NEAR}; raise it: threshold="10%"'),
        (known(0, 0.039, fresh=20, recorded=20), f'{TOO_NEAR}; raise it: threshold="3%"'),
        (known(0, 0.5), TOO_NEAR),  # nor is one of 50 % large enough
        (known(0, 0.02, noisier=0.02**2), "9 recorded and 9 fresh sessions"),
        (known(0.01, 0.02), f'{TOO_NEAR}; raise it: threshold="10%"'),
        # above it 1.960 errors do, in either direction
        (known(LIMIT + 0.02, 0.02), "8 recorded and 8 fresh sessions"),
        (known(-LIMIT - 0.02, 0.02), "8 recorded and 8 fresh sessions"),
        # the error of pairs is σ/√pairs
        (known(0, 0.02, recorded=0), "--gpukern-sessions=3"),
        (known(0, 0.02, fresh=5, recorded=0), "--gpukern-sessions=5"),
        (known(0, 0.02, devices=CaseSpread(0.02**2, 3)), "3 sessions recorded on this device may settle it"),
    ],
)
def test_so_many_sessions_would_settle_it(change, words):
    enough = f"{words} would settle it"
    assert settling_words(change, LIMIT) == (words if change.settling(LIMIT) is None else enough)


@pytest.mark.parametrize(
    ("ratio", "signed", "unsigned"),
    [
        (1.0, "+0.0 %", "0 %"),
        (1.00004, "+0.0 %", "0.004 %"),
        (1.00006, "+0.01 %", "0.006 %"),
        (0.9985, "−0.15 %", "-0.15 %"),
        (1.0099, "+0.99 %", "0.99 %"),
        (1.01001, "+1.0 %", "1.001 %"),
        (0.95, "−5.0 %", "-5 %"),
        (9.99, "+899.0 %", "899 %"),
        (10.001, "×10", "×10"),
        (1234.5, "×1.23e+03", "×1.23e+03"),
    ],
)
def test_a_change_is_written_in_per_cent_and_from_tenfold_on_as_a_factor(ratio, signed, unsigned):
    assert (percent(math.log(ratio)), percent(math.log(ratio), signed=False)) == (signed, unsigned)


def test_an_interval_is_written_with_one_sign_of_per_cent():
    assert numbers(known(0.0517, 0.006)) == "+5.3 % (90 %: +3.8 … +6.8 %)"
    assert numbers(known(2.3, 0.006)) == "+897.4 % (90 %: +883.6 % … ×10.1)"
    assert ratio_of(1e6) == math.inf
