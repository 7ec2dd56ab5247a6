"""Runs Triton's kernels in its interpreter; `make test-triton` installs what these tests need."""

import pytest

from pytest_gpukern.check.call_arguments import arguments_of

from .conftest import refused, results_in

pytest.importorskip("triton")

KERNELS = """
import numpy as np
import torch
import triton
import triton.language as tl

from pytest_gpukern import Axis, Problem, Tolerance, random_array


def softmax_of(x):
    e = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    return {"y": e / e.sum(1, keepdims=True)}


softmax = Problem(
    "softmax",
    version=1,
    axes={"columns": Axis(smoke=(33,), full=(10**4,))},
    make_inputs=lambda rng, columns: {"x": random_array(rng, (7, columns), "float32")},
    reference=softmax_of,
    outputs=lambda columns: {"y": ((7, columns), "float32")},
    tolerance=Tolerance(rtol=1e-5, atol=1e-7),
)


@triton.jit
def rows(x, y, columns, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = (at < columns) | (not MASKED)
    values = tl.load(x + tl.program_id(0) * columns + at, mask=inside, other=-float("inf"))
    e = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + tl.program_id(0) * columns + at, e / tl.sum(e, axis=0), mask=inside)


def launch(kernel, x, y, **constants):
    columns = x.shape[1]
    return lambda: kernel[(7,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), **constants)


@softmax.variant("triton", num_warps=(4, 8))
def row(x, y, *, num_warps):
    return launch(rows, x, y, MASKED=True, num_warps=num_warps)


@softmax.variant("triton", allocates=True)
def returned(x):
    y = torch.empty_like(x)

    def call():
        new = torch.empty_like(x)
        launch(rows, x, new, MASKED=True)()
        return new

    return call


CONFIGURATIONS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
tuned_rows = triton.autotune(CONFIGURATIONS, key=["columns"])(rows)


@softmax.variant("triton")
def tuned(x, y):
    return lambda: tuned_rows[(7,)](x, y, x.shape[1], MASKED=True)


@triton.jit
def assembly(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], tl.float32, is_pure=True, pack=1)
    tl.store(y + at, value, mask=at < n)


@softmax.variant("triton")
def by_assembly(x, y):
    return lambda: assembly[(1,)](x, y, x.numel(), BLOCK=256)


@softmax.wrong("triton", expected_fault="out of bounds")
def without_a_mask(x, y):
    return launch(rows, x, y, MASKED=False)


@softmax.wrong("triton", expected_fault="not written")
def of_two_blocks(x, y):
    columns = x.shape[1]
    return lambda: rows[(7,)](x, y, columns - 1, BLOCK=64, MASKED=True)
"""

CASES = """
@softmax.cases
def test_softmax(gpu_benchmark, case):
    gpu_benchmark.run(case)


@softmax.wrong_cases
def test_rejected(gpu_benchmark, case):
    gpu_benchmark.reject(case)
"""


def test_variants_are_checked_in_the_interpreter_and_what_it_cannot_do_is_skipped_by_name(pytester):
    pytester.makepyfile(test_it=KERNELS + CASES)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto", "--gpukern-report=run.json")
    result.assert_outcomes(passed=6, skipped=1)
    result.stdout.fnmatch_lines(["1 skipped: not in the simulator: inline_asm (softmax/triton.by_assembly/*"])
    found = results_in(pytester.path / "run.json")
    assert len(found) == 4
    assert {(of["simulated"], of["correctness"]) for of in found.values()} == {(True, "PASSED")}


PLAIN = """
def arrays(gpu_device):
    device = "cpu" if gpu_device.is_simulated else "cuda"
    x = torch.randn(7, 33, device=device)
    return x, torch.empty_like(x)


def test_right(gpu_benchmark, gpu_device):
    x, y = arrays(gpu_device)
    gpu_benchmark(rows[(7,)], x, y, 33, BLOCK=64, MASKED=True)
    gpu_benchmark.verify(y, torch.softmax(x, 1), rtol=1e-5)


def test_poisoned(gpu_benchmark, gpu_device):
    x, y = arrays(gpu_device)
    gpu_benchmark(rows[(6,)], x, y, 33, BLOCK=64, MASKED=True)
    gpu_benchmark.verify(y, torch.softmax(x, 1), rtol=1e-5)
"""


def test_a_plain_test_is_checked_in_the_interpreter(pytester):
    marked = PLAIN.replace("def test_", "@pytest.mark.gpu_benchmark(outputs='y')\ndef test_")
    pytester.makepyfile(test_it="import pytest\n" + KERNELS + marked)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["INCORRECT: y: * still hold poison*"])


REACHES = """
@triton.jit
def increase(x, y, n, at, EVERYWHERE: tl.constexpr):
    i = at + tl.arange(0, 128)
    tl.store(y + i, tl.load(x + i) + 1, mask=(i < n) | EVERYWHERE)


@triton.jit
def add_up(pair, n):
    i = tl.arange(0, 128)
    tl.atomic_add(pair[1] + i, tl.load(pair[0] + i) + 1, mask=i < n)


@triton.jit
def increase_by_address(address, x, n):
    i = tl.arange(0, 128)
    tl.store(tl.load(address).to(tl.pointer_type(tl.float32)) + i, tl.load(x + i) + 1, mask=i < n)


def beside(x, y):
    wide = torch.zeros(10, 100)
    increase[(1,)](x, wide[3, 50:], 100, 0, False)
    y.copy_(wide.view(-1)[350:450])


LAUNCHES = {
    "read unmasked": lambda x, y: increase[(1,)](x, y, 100, 0, False),
    "in place": lambda x, y: (y.copy_(x), increase[(1,)](y, y, 100, 0, False)),
    "beside a view": beside,
    "NumPy's": lambda x, y: increase[(1,)](x, torch.from_numpy(y.numpy()), 100, 0, False),
    "empty": lambda x, y: [increase[(1,)](x, of, len(of), 0, False) for of in (y[:0], torch.empty(0), y)],
    "by its address": lambda x, y: increase_by_address[(1,)](torch.tensor([y.data_ptr()]), x, 100),
    "atomic, in a tuple": lambda x, y: (y.zero_(), add_up[(1,)]((x, y), 100)),
    "wrong: behind": lambda x, y: increase[(1,)](x, y, 100, 0, True),
    "wrong: before": lambda x, y: increase[(1,)](x, y, 100, -3, False),
    "wrong: far": lambda x, y: increase[(1,)](x, y, 0, 10**9, True),
    "wrong: of a view": lambda x, y: increase[(1,)](x, y[90:], 100, 0, False),
    "wrong: of an empty one": lambda x, y: increase[(1,)](x, torch.empty(0), 100, 0, False),
    "wrong: of bytes": lambda x, y: increase[(1,)](x, y.to(torch.int8), 101, 0, False),
    "wrong: atomic, in a tuple": lambda x, y: add_up[(1,)]((x, y), 101),
}


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.gpu_benchmark(outputs="y")
def test_it(gpu_benchmark, name, guarded):
    x = torch.arange(100.0)
    y = gpu_benchmark.guarded_like(x, "y") if guarded else torch.empty_like(x)
    gpu_benchmark(LAUNCHES[name], x, y)
    gpu_benchmark.verify(y, x + 1)


def test_outside_of_a_measured_call():
    increase[(1,)](torch.ones(3), torch.ones(3), 4, 0, False)
"""


def test_a_write_outside_an_allocation_is_a_fault_and_no_crash_and_a_read_there_finds_a_poison(pytester):
    pytester.makepyfile(test_it="import pytest\n" + KERNELS + REACHES)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto", "--gpukern-report=run.json")
    result.assert_outcomes(passed=14, failed=15)
    result.stdout.fnmatch_lines(["*WroteOutside: 4 bytes written outside y: flat index 3 of 3"])
    for name, of in results_in(pytester.path / "run.json").items():
        assert ("wrong" in name) == (": out of bounds" in (of["diagnosis"] or "")), (name, of["diagnosis"])


IN_ORDER = """
@triton.jit
def chain(y):
    place = tl.program_id(0)
    for axis in tl.static_range(1, 3):
        place = place * tl.num_programs(axis) + tl.program_id(axis)
    before = tl.load(y + place - 1, mask=place > 0, other=0.0)  # of a program that may not have run
    tl.store(y + place, before + 1)


@pytest.mark.parametrize("grid", [(6,), (2, 3), (1, 3, 2)])
@pytest.mark.gpu_benchmark(outputs="y")
def test_it(gpu_benchmark, grid):
    y = torch.empty(6)
    gpu_benchmark(chain[grid], y)
    gpu_benchmark.verify(y, torch.arange(1.0, 7.0))
"""


def test_programs_run_in_both_orders(pytester):
    pytester.makepyfile(test_it="import pytest\n" + KERNELS + IN_ORDER)
    pytester.runpytest_subprocess("--gpukern-simulator=auto").assert_outcomes(failed=3)


GIVEN_WRONGLY = """
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("name", ["numpy", "mixed", "chosen", "missing", "right"])
def test_it(gpu_benchmark, name, behind):
    x = torch.randn(7, 33)
    kernel, args, constants = {
        "numpy": (rows, (x.numpy(), np.empty((7, 33)), 33), {"BLOCK": 64, "MASKED": True}),
        "mixed": (tuned_rows, (x, x.numpy(), 33), {"MASKED": True}),
        "chosen": (tuned_rows, (x, torch.empty_like(x), 33), {"BLOCK": 64, "MASKED": True}),
        "missing": (rows, (x, torch.empty_like(x), 33), {"BLOCK": 64}),
        "right": (tuned_rows, (x, torch.empty_like(x), 33), {"MASKED": True}),
    }[name]
    if behind:
        gpu_benchmark(lambda: kernel[(7,)](*args, **constants))  # refused
    else:
        gpu_benchmark(kernel[(7,)], *args, **constants)  # refused
"""


def test_what_triton_does_not_take_is_told_in_one_message_at_the_users_line(pytester):
    pytester.makepyfile(test_it="import pytest\n" + KERNELS + GIVEN_WRONGLY)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto")
    result.assert_outcomes(passed=2, failed=8)
    for text in (
        "x, y are numpy.ndarray, but Triton's kernels take tensors of PyTorch: pass torch.as_tensor(x), *",
        "y is numpy.ndarray, but Triton's kernels take tensors of PyTorch: *",
        "BLOCK=64 is given, but triton.autotune chooses it: leave it out of the call, *",
        "no MASKED is given: pass it in the call, such as MASKED=…",
    ):
        lines = ["> *# refused", f"E  *TypeError: rows: {text}", "test_it.py:*: TypeError"]
        result.stdout.fnmatch_lines(lines)
    for theirs in ("*-packages/triton/*", "*pytest_gpukern/*.py:*"):
        result.stdout.no_fnmatch_line(theirs)


IN_BFLOAT16 = """
@triton.jit
def apply(x, y, NAME: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    a = tl.load(x + at)
    if NAME == "dot":
        a = tl.dot(a, a)
    elif NAME == "sum":
        a += tl.cumsum(a, axis=1)
    elif NAME == "from int":
        a = i.to(tl.bfloat16) + tl.zeros((16, 16), tl.bfloat16)
    elif NAME == "float32":
        a = (2 * a.to(tl.float32)).to(tl.bfloat16)
    tl.store(y + at, a)

@pytest.mark.parametrize("factor", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("name", ["dot", "sum", "from int", "float32", "copy"])
@pytest.mark.gpu_benchmark(outputs="y")
def test_it(gpu_benchmark, name, factor):
    x = torch.randn(16, 16).to(torch.bfloat16)
    y = torch.empty_like(x)
    gpu_benchmark(apply[(1,)], x, y, name)
    gpu_benchmark.verify(y, factor * x.float())
"""


def test_the_interpreter_converts_bfloat16_and_a_kernel_that_computes_with_it_is_skipped_by_name(pytester):
    pytester.makepyfile(test_it="import pytest\n" + KERNELS + IN_BFLOAT16)
    result = pytester.runpytest_subprocess("--gpukern-simulator=auto", "-rA")
    result.assert_outcomes(passed=2, failed=2, skipped=6)
    result.stdout.fnmatch_lines(["*not in the simulator: arithmetic of bfloat16*"])
    result.stdout.fnmatch_lines_random(["PASSED *float32-twice*", "PASSED *copy-once*"])


def test_arguments_of_a_launch_on_a_gpu_have_the_names_of_the_kernels_parameters(pytester):
    pytester.makepyfile(kernels=KERNELS)
    pytester.syspathinsert()
    from kernels import rows, tuned_rows

    for kernel in (rows, tuned_rows):
        arguments = arguments_of(kernel[(7,)], ("x", "y", 33), {"BLOCK": 64})
        assert [argument.place for argument in arguments] == ["x", "y", "columns", "BLOCK"]


@pytest.mark.parametrize("option", ["--gpukern-simulator=never"])
def test_an_interpreter_that_the_environment_switches_on_is_refused_beside_real_kernels(
    pytester, monkeypatch, option
):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytester.makepyfile(test_it=KERNELS + CASES)
    remedy = "Unset it, or use --gpukern-simulator=always"
    refused(pytester.runpytest_subprocess(option), f"TRITON_INTERPRET=1 *{remedy}*")


def test_a_triton_that_was_imported_before_is_named_as_the_reason(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    pytester.makepyfile(early="import triton.language", test_it=KERNELS + CASES)
    result = pytester.runpytest_subprocess("-p", "early", "--gpukern-simulator=auto")
    why = "Triton was imported before --gpukern-simulator could switch its interpreter on"
    result.stdout.fnmatch_lines([f"*{why}*"])
    assert result.parseoutcomes().get("passed", 0) == 0
