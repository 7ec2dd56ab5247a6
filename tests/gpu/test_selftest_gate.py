"""Tests the gate's self-test on a real device: kernels are right, and planted work takes as much longer."""

import statistics
import sys

import pytest

from pytest_gpukern.selftest.gate_kernels import gate_cases
from pytest_gpukern.selftest.processes import run_child
from pytest_gpukern.selftest.recording import GateSession
from pytest_gpukern.selftest.rivals import NVBENCH

CASES = gate_cases()


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """Two sessions, the first with NVBench."""
    folder = tmp_path_factory.mktemp("gate")
    return [run_child(GateSession, folder / f"{number}.json", number, rivals=True) for number in (0, 1)]


def test_two_sessions_measure_every_case_that_can_run_here(sessions, capsys):
    for session in sessions:
        assert session.problem is None
        assert session.faults == {}
        with capsys.disabled():
            sys.stdout.write(f"\n{session.elapsed_s:.1f} s, left out: {session.left_out}")
        expected = {case.id for case in CASES} - set(session.left_out)
        assert {reading.case for reading in session.readings} == expected
        assert {reading.case: reading.invalid for reading in session.readings if reading.invalid} == {}
        assert all(reading.sm_mhz for reading in session.readings)
        assert set(session.walls_ns) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case.base], ids=lambda case: case.id)
def test_planted_work_takes_as_much_longer(sessions, case):
    found = [{reading.case: reading.median_ns for reading in session.readings} for session in sessions]
    more = statistics.fmean(times[case.id] / times[case.base] - 1 for times in found)
    # Memory and short kernels do not repeat as well as long arithmetic does (sessions of 60 µs by 0.2 %), and
    # the start of a kernel is time without work.
    long = case.kernel == "fma" and found[0][case.base] > 1e6
    tolerance = (0.002 if long else 0.006) + 0.04 * case.share
    assert more == pytest.approx(case.share, abs=tolerance)


def test_each_kernel_is_right_and_one_with_other_work_than_stated_is_found(runtime, monkeypatch):
    import dataclasses

    from pytest_gpukern.selftest.gate_kernels import GateKernels

    own = [case for case in CASES if case.kernel not in ("gemm", "nothing")]
    kernels = GateKernels(own)
    try:
        assert {case.id: fault for case in own if (fault := kernels.fault(case)) is not None} == {}
        launch = kernels.launch
        less = {case: dataclasses.replace(case, size=case.size - 16) for case in own}
        monkeypatch.setattr(kernels, "launch", lambda case: launch(less[case]))
        assert [case.id for case in own if kernels.fault(case) is None] == []
    finally:
        kernels.close()


def test_nvbench_reads_a_base_and_what_is_planted_on_it(sessions):
    if NVBENCH.missing() is not None:
        assert sessions[0].rivals == {NVBENCH.name: NVBENCH.missing()}
        return
    assert sessions[0].rivals == {}
    times = {reading.case: reading.mean_ns for reading in sessions[0].nvbench}
    assert len(times) == 6
    assert times["fma 9600 trips +5 %, cold"] / times["fma 9600 trips, cold"] == pytest.approx(1.05, abs=0.01)
    assert sessions[1].nvbench == ()
