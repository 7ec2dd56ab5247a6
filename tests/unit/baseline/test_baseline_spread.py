"""What the store gives the gate beside a case's own sessions: the suite's spread and the first epoch."""

from __future__ import annotations

import math
import random

import pytest
from test_baseline import H200, KERNEL, case_of, record, result_of, store_of


def noisy(folder, name, variant, sigma, rng):
    case = case_of(folder, variant=variant, name=name)
    return [result_of(case, 50_000.0 * math.exp(rng.gauss(0, sigma))) for _ in range(5)]


@pytest.fixture
def suite(tmp_path):
    """Two files of thirty cases each, of five sessions: one of them four times as noisy."""
    rng = random.Random(4)
    for name, sigma in (("quiet", 0.002), ("loud", 0.008)):
        results = [noisy(tmp_path, name, f"v{number}", sigma, rng) for number in range(30)]
        record("create", *(result for session in results for result in session))
    return tmp_path


def test_the_spread_is_shared_by_the_cases_of_all_files_that_were_read(suite):
    store = store_of("compare")
    assert store.shared_spread(H200) == {}
    store.baseline(case_of(suite, name="quiet"), H200)
    quiet = store.shared_spread(H200)["kernel/event"]
    store.baseline(case_of(suite, name="loud"), H200)
    both = store.shared_spread(H200)["kernel/event"]
    assert (quiet.cases, both.cases) == (30, 60)
    assert quiet.s0 == pytest.approx(0.002, rel=0.2)
    assert both.s0 > 1.3 * quiet.s0
    assert both.d0 < quiet.d0
    assert store.shared_spread("nvidia-a100") == {}


def test_the_first_epoch_is_the_anchor_where_it_is_not_the_current_one(tmp_path):
    case = case_of(tmp_path)
    record("create", result_of(case, 50_000.0))
    assert store_of("compare").anchor_for(case, H200, KERNEL) == ()
    record("update", result_of(case, 53_000.0))
    record("update", result_of(case, 56_000.0))
    (time,) = store_of("compare").anchor_for(case, H200, KERNEL)
    assert time.median_ns == 50_000.0
    assert store_of("compare").anchor_for(case, H200, "transfer/event/cold") == ()
    assert store_of("compare").anchor_for(case_of(tmp_path, variant="other"), H200, KERNEL) == ()
