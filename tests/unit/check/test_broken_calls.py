"""Each kernel of the table of broken ones is rejected on host arrays, as a call and as a variant."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from broken_calls import BROKEN, compiled, on_host
from fakes import FakeEnvironment, case_of, doubling, measuring, run
from test_checked_calls import X, checks_of, make
from test_determinism import LOOSE

from pytest_gpukern.arrays.compare import draw_poisons
from pytest_gpukern.check.diagnosis import IncorrectError
from pytest_gpukern.check.verify import check_against_reference

EACH = pytest.mark.parametrize("row", BROKEN, ids=lambda row: row.name)


@EACH
def test_a_broken_call_gets_the_diagnosis_of_its_fault_at_once_or_when_it_is_verified(row):
    call, x, out = on_host(compiled(row.does)), X.copy(), np.empty(9)
    checks = checks_of(call, outputs=("out",), **row.declared)
    try:
        for number in range(6):
            make(checks, call, (x, out), {}, f"in call {number + 1}")
    except IncorrectError as error:
        found = error.diagnosis
    else:
        unsettled, seen = checks.seen.unsettled(), {"seen": checks.seen, "hashes": False}
        found = check_against_reference("out", out, 2 * x, None, None, asks_what_else=False, **seen).diagnosis
        assert unsettled or row.fault is not None
    assert row.fault in (None, found.fault)
    assert row.says(found.message, 9)


@EACH
@pytest.mark.parametrize("times", [True, False])
def test_a_broken_variant_gets_the_diagnosis_of_its_fault_and_has_no_times(row, times, gpu, timer):
    gpu.poisons = draw_poisons("a run draws its own")
    call, problem = on_host(compiled(row.does)), doubling(9, **LOOSE)
    case = case_of(lambda a, out: functools.partial(call, a, out), problem=problem, **row.declared)
    result = run(case, FakeEnvironment(gpu, settings=measuring(benchmark=times)))
    assert row.says(result.diagnosis, 9, as_variant=True)
    assert result.measurements == ()
