"""Checks what else changed: reasons, resources, accuracy, bits, and the shift that all kernels share."""

import json
import re

import pytest

from .conftest import FIRST, GPU_PROBLEM, KERNEL_PROBLEM, SECOND, repeat_sessions, results_in
from .fake_gpu import MODEL_KEY

WORSE = "np.multiply(x, 2 * (1 + float(os.environ.get('OFF', 0))), out=y)"
MACHINE = ", so is the copy (+3.0 %), FMA +3.0 %: the machine, not your change"
MANY = "".join(
    f'@doubling.variant("numba")\ndef variant{number}(x, y):\n    return launch_of("ALL", x, y)\n\n'
    for number in range(8)
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Makes the terminal so wide that no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def with_kernels(pytester, gpu, record, monkeypatch):
    """Runs variants that launch a kernel of 32 registers, as they did when they were recorded."""
    pytester.makepyfile(test_doubling=KERNEL_PROBLEM)
    for name in ("FIRST", "SECOND"):
        monkeypatch.setenv(f"{name}_KERNEL", json.dumps({"registers": 32, "code": "beef"}))
    record("of_32_registers", 2)
    return gpu


def record_with_an_older_numpy(pytester):
    path = pytester.path / "baselines" / f"doubling.{MODEL_KEY}.json"
    path.write_text(re.sub(r'"numpy": "[^"]+"', '"numpy": "0.1"', path.read_text()))


def test_a_slowdown_says_in_failure_and_report_what_else_changed(with_kernels, monkeypatch, pytester):
    monkeypatch.setenv("FIRST_TAKES_NS", "1100")
    result = with_kernels("-rN")
    result.assert_outcomes(passed=1, failed=1)
    same = "; same machine code"
    result.stdout.fnmatch_lines(
        [f"SLOWER (kernel/event/cold): +10.0 % *{same}", "*numba.first * SLOWER +10.0 %"]
    )
    result.stdout.no_fnmatch_line("*because*")
    assert result.stdout.str().count(same) == 1, "the failure says it, and the table not again"
    assert result.stdout.str().count("\nsame machine and libraries as recorded\n") == 1
    why = "  why       same machine code"
    with_kernels("--tb=no").stdout.fnmatch_lines([f"SLOWER  {FIRST}", why])
    monkeypatch.setenv("FIRST_KERNEL", json.dumps({"registers": 96, "code": "cafe"}))
    record_with_an_older_numpy(pytester)
    because = "because: new machine code; registers 32 → 96; occupancy 100 → 25 %; numpy 0.1 → *"
    with_kernels().stdout.fnmatch_lines([f"SLOWER (*): +10.0 % *; {because}"])


def test_registers_that_grew_are_reported_and_fail_where_asked_to_until_an_update_accepts_them(
    with_kernels, monkeypatch, pytester
):
    monkeypatch.setenv("FIRST_KERNEL", json.dumps({"registers": 96, "code": "cafe", "local": 48}))
    text = "saxpy: registers 32 → 96, local 0 → 48 B"
    result = with_kernels("--gpukern-report=run.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"resources    {FIRST}: {text}"])
    stored = results_in(pytester.path / "run.json")
    assert stored[FIRST]["findings"] == [{"kind": "resources", "text": text}]
    assert stored[SECOND]["findings"] == []
    result = with_kernels("--gpukern-fail-on=resources")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"RESOURCES: {text}", "gpukern: 1 passed, 1 failed by the gate *"])
    update = ("--gpukern-baseline=update", "--gpukern-reason=x")
    with_kernels("--gpukern-fail-on=resources", *update).assert_outcomes(passed=2)
    with_kernels("--gpukern-fail-on=resources").assert_outcomes(passed=2)


def test_one_call_in_ten_three_times_as_slow_is_reported_and_fails_where_asked_to(recorded, monkeypatch):
    monkeypatch.setenv("TENTH_TAKES", "3")
    result = recorded()
    result.assert_outcomes(passed=2)
    text = "kernel/event/cold: the median is no slower, but the mean is 1.* times it (recorded: 1.00), *"
    result.stdout.fnmatch_lines([f"tail         *: {text[:60]}*", "gpukern: 2 passed · of 2 times: 2 same"])
    result = recorded("--gpukern-fail-on=tail")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([f"TAIL: {text}"])


@pytest.fixture
def inexact(pytester, gpu, monkeypatch):
    """Runs variants with outputs that were off by 1e-13 when they were recorded."""
    problem = KERNEL_PROBLEM.replace("np.multiply(x, 2, out=y)", WORSE)
    loose = "Tolerance(rtol=1e-6), allow_lower_precision='errors that grow'"
    pytester.makepyfile(test_doubling=problem.replace("Tolerance()", loose))
    for name in ("FIRST", "SECOND"):
        monkeypatch.setenv(f"{name}_KERNEL", json.dumps({"registers": 32, "code": "beef"}))
    monkeypatch.setenv("OFF", "1e-13")
    gpu("--gpukern-baseline=create").assert_outcomes(passed=2)
    return gpu


def test_an_error_that_grew_or_other_bits_of_the_same_machine_code_are_reported_and_fail_where_asked_to(
    inexact, monkeypatch, pytester
):
    repeat_sessions(pytester.path, 3)
    inexact("--gpukern-fail-on=accuracy", "--gpukern-report=run.json").assert_outcomes(passed=2)
    stored = results_in(pytester.path / "run.json")
    bits = {case: result["errors"]["y"]["bits"] for case, result in stored.items()}
    monkeypatch.setenv("OFF", "1e-10")
    result = inexact()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["accuracy     2 cases of doubling: y: error *"])
    result = inexact("--gpukern-fail-on=accuracy")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["ACCURACY: y: error * → * ULP, 1e-13 → 1e-10 relative, *"])
    monkeypatch.setenv("OFF", "1.1e-13")
    result = inexact("--gpukern-fail-on=accuracy")
    result.assert_outcomes(failed=2)
    text = f"other bits from the same machine code and inputs: {bits[FIRST]} in 3 sessions, now crc32-*"
    result.stdout.fnmatch_lines([f"BITS: y: {text}"])
    monkeypatch.setenv("FIRST_KERNEL", json.dumps({"registers": 32, "code": "cafe"}))
    inexact("--gpukern-fail-on=accuracy").assert_outcomes(passed=1, failed=1)


def test_all_kernels_slower_with_the_canaries_is_said_to_be_the_machine(gpu, monkeypatch, pytester):
    pytester.makepyfile(test_doubling=GPU_PROBLEM.replace("@doubling.cases", MANY + "@doubling.cases"))
    monkeypatch.setenv("CANARIES", json.dumps({"copy": 1000, "fma": 2000}))
    gpu("--gpukern-baseline=create").assert_outcomes(passed=10)
    repeat_sessions(pytester.path, 3)
    record_with_an_older_numpy(pytester)
    for name, takes_ns in (("FIRST", "1080"), ("SECOND", "1030"), ("ALL", "1030")):
        monkeypatch.setenv(f"{name}_TAKES_NS", takes_ns)
    monkeypatch.setenv("CANARIES", json.dumps({"copy": 1030, "fma": 2060}))
    result = gpu("--gpukern-report=run.json")
    result.stdout.fnmatch_lines(
        [
            "doubling *",
            "since the record: numpy 0.1 → *; outputs as recorded",
            f"times: all kernels 3.0 % slower (median of 10, 95 %: 3.0 … 3.0 %){MACHINE}",
            f"beyond it: {FIRST} +4.9 % (of +8.0 %)",
        ]
    )
    stored = results_in(pytester.path / "run.json")[FIRST]
    assert stored["canaries"] == {"copy": 1030, "fma": 2060}
    assert [verdict["kind"] for verdict in stored["verdicts"].values()] == ["SLOWER"]
