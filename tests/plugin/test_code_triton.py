"""Compiles Triton's kernels without a GPU; `make test-triton` installs what these tests need.

The stand-in takes a process for good, so each script runs in one of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import made_up_results
import pytest
from made_up_runs import whole_run
from msgspec import structs

from pytest_gpukern.baseline.store import Store
from pytest_gpukern.values.result import Result
from pytest_gpukern.values.untrusted_json import built

pytest.importorskip("triton")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]

BEGIN = """
import json, sys
from pytest_gpukern.code.launches import DoesNotCompile
from pytest_gpukern.code.triton import TritonStandIn
from pytest_gpukern.gpu.cubin import code_sha256, registers

ARCHITECTURES = ("sm_80", "sm_90")
stand_in, launches = TritonStandIn(), []

def record(launch):
    facts = {"kernel": launch.kernel, "grid": launch.grid}
    for name in ARCHITECTURES:
        try:
            image, entry, block, shared = launch.compiled(name)
        except DoesNotCompile as error:
            facts[name] = str(error)
        else:
            facts[name] = [code_sha256(image), block, shared, registers(image)[entry]]
    launches.append(facts)

def why(call):
    try:
        call()
    except Exception as error:
        return stand_in.why_unknown(error) or repr(error)
    return "no error"

stand_in.install(record)
answers = {}
import numpy as np
import torch
import triton
import triton.language as tl
"""

END = """
print(json.dumps([launches, answers]))
"""


def run(tmp_path, body, *, begin=BEGIN, **environment):
    """Returns the launches that a script makes, each with what was compiled, and its answers."""
    script = tmp_path / "script.py"
    script.write_text(begin + body + END)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRITON_CACHE_DIR": str(tmp_path / "cache"),
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def line_of(tmp_path, text):
    """Returns how a message names the line of the script with a text."""
    lines = (tmp_path / "script.py").read_text().splitlines()
    return f"{tmp_path / 'script.py'}:{next(n for n, line in enumerate(lines, 1) if text in line)}: "


ADD = """
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""


def test_specialisation_is_tritons_own(tmp_path):
    body = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

x, y = torch.randn(1 << 12, device="cuda"), torch.empty(1 << 12, device="cuda")
grid = lambda constants: (triton.cdiv(1000, constants["BLOCK"]),)
add[grid](x, y, 1000, BLOCK=256)          # neither 1 nor divisible by 16
add[grid](x, y, 1024, BLOCK=256)          # divisible by 16
add[grid](x, y, 1, BLOCK=256)             # a constant
add[grid](x[1:], y, 1024, BLOCK=256)      # not aligned
add[grid](x[4:], y, 1024, BLOCK=256)      # aligned to 16 bytes
add[grid](x.bfloat16(), y, 1024, BLOCK=256, num_warps=8)
add[(0,)](x, y, 1024, BLOCK=256)          # launches nothing

aligned = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}
for n, attributes, constants in (
    ("i32", aligned, {}),
    ("i32", {**aligned, (2,): [["tt.divisibility", 16]]}, {}),
    ("constexpr", aligned, {"n": 1}),
    ("i32", {(1,): aligned[1,], (2,): aligned[1,]}, {}),
):
    types = {"x": "*fp32", "y": "*fp32", "n": n, "BLOCK": "constexpr"}
    source = ASTSource(add, types, {"BLOCK": 256, **constants}, attributes)
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    answers[len(answers)] = [code_sha256(kernel.asm["cubin"]), kernel.metadata.shared]
"""
    launches, answers = run(tmp_path, ADD + body)
    assert [launch["grid"] for launch in launches] == [[4, 1, 1]] * 6
    hashes = [launch["sm_90"][0] for launch in launches]
    by_hand = [answers[str(number)][0] for number in range(4)]
    assert hashes[:4] == by_hand
    assert len(set(by_hand)) == 4
    assert hashes[4] == hashes[1]
    assert [launch["sm_90"][1] for launch in launches] == [[128, 1, 1]] * 5 + [[256, 1, 1]]
    assert all(launch["sm_80"][0] != launch["sm_90"][0] for launch in launches)


SUITES = """
from suites.layer_norm import on_triton as norm
from suites.softmax import on_triton as softmax

for dtype in ("float32", "float16", "bfloat16"):
    for columns in (100, 4096):
        x, y = (torch.empty((8, columns), dtype=getattr(torch, dtype), device="cuda") for _ in range(2))
        w, b = y[0], y[1]
        mean, rstd = torch.empty((2, 8), device="cuda")
        for call in (
            softmax.row(x, y, columns, 8),
            *([softmax.several_rows(x, y, columns)] if columns <= 1024 else []),
            softmax.online_maximum(x, y, columns, 1024),
            softmax.tuned(x, y, columns),
            norm.row(x, w, b, y, mean, rstd, columns, 8),
            norm.pieces(x, w, b, y, mean, rstd, columns, 1024),
            norm.tuned(x, w, b, y, mean, rstd, columns),
        ):
            call()
"""


def test_the_suites_kernels_compile_alike_in_two_processes(tmp_path):
    first, _ = run(tmp_path, SUITES)
    assert len(first) == 3 * (7 + 6)
    assert all(len(launch[name]) == 4 for launch in first for name in ("sm_80", "sm_90")), first
    last = SUITES.replace('"float32", "float16", "bfloat16"', '"bfloat16",')
    again, _ = run(tmp_path, last, TRITON_CACHE_DIR=str(tmp_path / "another"))
    assert again == first[-13:]


LOADED = """
import json
from types import SimpleNamespace
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor
from pytest_gpukern.gpu.cubin import code_sha256
from pytest_gpukern.gpu.kernel_facts import triton_cubins

launches, answers, loaded = [], {}, []

def load(name, image, shared, device):
    loaded.append(name)
    return 0x10 * len(loaded), 0xA0 + len(loaded), 16, 0, 1024

driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    launcher_cls=lambda source, metadata: lambda *_: None,
    utils=SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 232_448},
        load_binary=load,
        unload_module=lambda module: None,
    ),
))
"""


def test_triton_tells_the_code_of_each_handle_of_what_it_has_loaded(tmp_path):
    """Its own objects do, with a driver that only numbers what is loaded."""
    body = """
x = MockTensor(torch.float32)
compiled = [add.run(x, x, 1000, grid=(4,), warmup=True, BLOCK=size) for size in (128, 256, 512)]
answers["compiled"] = [len(triton_cubins()), len(loaded)]
for size in (256, 512):
    add[(4,)](x, x, 1000, BLOCK=size)
answers["launched"] = {handle: code_sha256(image) for handle, image in triton_cubins().items()}
answers["by hand"] = [code_sha256(kernel.asm["cubin"]) for kernel in compiled]
"""
    _, answers = run(tmp_path, ADD + body, begin=LOADED)
    _, one, other = answers["by hand"]
    assert answers["compiled"] == [0, 0], "to look loads nothing"
    assert answers["launched"] == {str(0xA1): one, str(0xA2): other}
    assert one != other


def test_heuristics_hold_and_the_first_configuration_that_is_left_is_taken(tmp_path):
    body = """
x = torch.empty(1024, device="cuda")

def never(*_, **__):
    raise AssertionError("measured")

def later(configurations, arguments, **_):
    return [one for one in configurations if one.kwargs["BLOCK"] > 128]

some = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((128, 1), (256, 2), (512, 4))]
tuned = triton.autotune(some, key=["n"], do_bench=never, cache_results=True)(add)
tuned[lambda constants: (1024 // constants["BLOCK"],)](x, x, 1024)
pruned = triton.autotune(some, key=["n"], prune_configs_by={"early_config_prune": later})(add)
pruned[lambda constants: (1024 // constants["BLOCK"],)](x, x, 1024)
chosen = triton.heuristics({"BLOCK": lambda arguments: arguments["x"].numel() // 2})(add)
chosen[lambda constants: (1024 // constants["BLOCK"],)](x, x, 1024)
"""
    launches, _ = run(tmp_path, ADD + body)
    assert [(launch["grid"][0], launch["sm_90"][1][0]) for launch in launches] == [(8, 32), (4, 64), (2, 128)]
    assert not list(tmp_path.glob("cache/**/*.autotune.json"))


def test_the_configuration_on_record_is_taken_and_another_one_when_that_is_said(tmp_path):
    body = """
x = torch.empty(1024, device="cuda")
some = [triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((128, 1), (256, 2), (512, 4))]
tuned = triton.autotune(some, key=["n"])(add)
for chosen in ({}, {"add": answers}, {"other": answers}, {"add": {"BLOCK": "1"}}):
    answers |= {name: str(value) for name, value in some[2].all_kwargs().items() if value is not None}
    stand_in.choose(chosen)
    tuned[lambda constants: (1024 // constants["BLOCK"],)](x, x, 1024)
"""
    launches, _ = run(tmp_path, ADD + body)
    first, last = [8, 32], [2, 128]
    assert [[of["grid"][0], of["sm_90"][1][0]] for of in launches] == [first, last, first, first]


TUNED = f"""
import torch
import triton
import triton.language as tl
{ADD}
some = [triton.Config({{"BLOCK": size}}, num_warps=warps) for size, warps in ((128, 1), (256, 2), (512, 4))]
tuned = triton.autotune(some, key=["n"])(add)

def test_tuned(gpu_benchmark):
    x = torch.empty(1024, device="cuda")
    gpu_benchmark(tuned[lambda constants: (1024 // constants["BLOCK"],)], x, x, 1024)
"""


def test_each_architecture_is_compiled_as_its_devices_were_tuned_and_another_choice_is_told(pytester):
    """The recorded choices are those of a session on an H200; nothing is on record of an A100."""
    pytester.makepyfile(test_tuned=TUNED)

    def compiled(*options):
        done = pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", "--gpukern-code=sm_80,sm_90", "--gpukern-report=a.json", "-v", *options
        )
        assert done.ret == 0, "\n".join(done.outlines)
        (found,) = whole_run(pytester.path / "a.json")["results"]
        blocks = {name: of["kernels"][0]["block"][0] for name, of in found["code"].items()}
        return found, blocks, done.stdout

    found, blocks, _ = compiled("--gpukern-baseline=create")
    assert blocks == {"sm_80": 32, "sm_90": 32}
    first = found["code"]["sm_90"]["autotuned"]["add"]
    measured = structs.replace(
        built(found, Result),
        measurements=(made_up_results.measured(),),
        fingerprint=made_up_results.FINGERPRINT,
        autotuned={"add": {**first, "BLOCK": "512", "num_warps": "4"}},
        code={},
        verdicts={},
    )
    store = Store("create")
    store.add(measured, model_key="nvidia-h200")
    assert store.flush().written
    _, blocks, told = compiled("--gpukern-fail-on=resources")
    assert blocks == {"sm_80": 32, "sm_90": 128}
    told.fnmatch_lines(["*CHANGED*sm_90: autotuned BLOCK=128 *num_warps=1* → BLOCK=512 *num_warps=4*"])
    _, blocks, _ = compiled("--gpukern-baseline=off")
    assert blocks == {"sm_80": 32, "sm_90": 32}


@pytest.mark.parametrize(
    ("option", "other"), [("--gpukern-code=sm_90", "cpu"), ("--gpukern-simulator=auto", "cuda")]
)
def test_one_form_is_compiled_and_interpreted_and_told_where_a_test_has_another(pytester, option, other):
    form, folder = '"cpu" if gpu_device.is_simulated else "cuda"', ROOT / "docs/examples/triton"
    shutil.copytree(folder, pytester.path, dirs_exist_ok=True)
    call = (folder / "test_softmax_call.py").read_text()
    pytester.makepyfile(test_other=call.replace(form, f'"{other}"'))
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", option, "-k", "test_one_call")
    outcomes = {name: count for name, count in done.parseoutcomes().items() if name != "deselected"}
    assert outcomes == {"passed": 1, "failed" if other == "cpu" else "skipped": 1}
    assert f"write device={form}" in " ".join(done.stdout.str().split())


def test_code_that_does_not_compile_is_told_with_the_users_line_and_for_its_architecture(tmp_path):
    body = """
@triton.jit
def helper(v):
    return v + nothing

@triton.jit
def of_a_name(x):
    tl.store(x, helper(tl.load(x)))

@triton.jit
def of_a_shape(x):
    tl.store(x + tl.arange(0, 100), 1)

@triton.jit
def of_assembly(x):
    tl.store(x, tl.inline_asm_elementwise("mov.odd $0, $1;", "=r,r", [tl.load(x)], tl.float32, True, 1))

@triton.jit
def of_memory(x, B: tl.constexpr):
    at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    total = tl.zeros((B, B), tl.float32)
    for piece in range(4):
        total += tl.dot(tl.load(x + at + piece * B * B), tl.load(x + at - piece * B * B))
    tl.store(x + at, total.to(tl.float16))

x = torch.empty(1 << 20, device="cuda")
for kernel in (of_a_name, of_a_shape, of_assembly):
    kernel[(1,)](x)
of_memory[(1,)](x.half(), B=128, num_stages=4)
add[(1,)](x, x, 5, BLOCK=64, num_warps=64)
add[(1,)](x, x, 5, BLOCK=64, num_ctas=2)
add[(1,)](x, x, 5, BLOCK=64, num_warsp=2)
"""
    (name, shape, assembly, memory, threads, cluster, option), _ = run(tmp_path, ADD + body)
    assert name["sm_80"].startswith(line_of(tmp_path, "v + nothing"))
    assert "nothing is not defined" in name["sm_80"]
    wanted = line_of(tmp_path, "arange(0, 100)") + "in of_a_shape: arange's range must be a power of 2"
    assert shape["sm_80"] == shape["sm_90"] == wanted
    assert "Unknown modifier '.odd'" in assembly["sm_90"]
    assert memory["sm_80"].startswith(line_of(tmp_path, "def of_memory"))
    assert "196,608 of 166,912 B of shared memory" in memory["sm_80"]
    assert "2,048 of 1,024 threads" in threads["sm_90"]
    assert "num_ctas > 1 requires" in cluster["sm_80"]
    assert (cluster["grid"], cluster["sm_90"][1]) == ([2, 1, 1], [128, 1, 1])
    assert "num_warsp was specified but unrecognised" in option["sm_90"]
    assert not any("\n" in told or "Traceback" in told for told in (name["sm_80"], assembly["sm_80"]))


def test_host_code_runs_as_on_a_device_until_it_wants_a_result(tmp_path):
    body = """
import ml_dtypes

assert torch.cuda.is_available() and torch.cuda.current_device() == 0
assert torch.cuda.get_device_properties(0).multi_processor_count > 0
assert torch.cuda.get_device_capability() == (9, 0)
host = torch.arange(4)
assert host.max().item() == 3                # tensors of the host are real
x = torch.randn(1000, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
y = torch.empty_like(x)
arrays = host.cuda(), host.to("cuda"), torch.from_numpy(np.ones(3)).cuda(), torch.tensor([1], device="cuda")
for tensor in arrays:
    assert tensor.is_cuda and tensor.device.index == 0
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(x.device):
    launched = add[(4,)](x, y, 1000, BLOCK=256)
torch.cuda.current_stream().synchronize()
torch.cuda.synchronize()
layer = torch.nn.LayerNorm(32).cuda().half()
add[(1,)](layer.weight, y, 32, BLOCK=32)

for array in (np.zeros((4, 6), ml_dtypes.bfloat16).T, np.zeros(9, np.float32)[1:], np.zeros((0, 3), np.int8)):
    given = stand_in.given(array)
    assert given.is_cuda and given.shape == array.shape and str(given.dtype) == f"torch.{array.dtype}"
    assert given.stride() == tuple(stride // array.itemsize for stride in array.strides)
    assert given.data_ptr() % 16 == array.ctypes.data % 16 or not array.size

answers = {
    "item": why(lambda: y.sum().item()),
    "if": why(lambda: 1 if (y > 0).all() else 0),
    "numpy": why(lambda: y.cpu().numpy()),
    "nonzero": why(lambda: y.nonzero()),
    "mask": why(lambda: y[y > 0]),
    "copy": why(lambda: torch.empty(1000).copy_(y)),
    "close": why(lambda: torch.testing.assert_close(y.cpu(), torch.zeros(1000))),
    "registers": why(lambda: launched.n_regs),
    "time": why(lambda: triton.testing.do_bench(lambda: add[(4,)](x, y, 1000, BLOCK=256))),
    "backward": why(lambda: torch.ones(3, device="cuda", requires_grad=True).sum().backward()),
    "of the user": why(lambda: add[(4,)](torch.ones(3), y, 3, BLOCK=256)),
}
"""
    launches, answers = run(tmp_path, ADD + body)
    assert len(launches) > 2
    assert answers.pop("of the user").startswith("ValueError('Pointer argument (at 0) cannot be accessed")
    assert {
        key: why for key, why in answers.items() if not why.startswith(("host code ", "PyTorch's "))
    } == {}
    assert "measures a time" in answers["time"]
    assert "n_regs" in answers["registers"]


def test_a_library_that_is_too_old_is_refused_with_the_remedy(tmp_path, monkeypatch):
    from importlib import metadata

    from pytest_gpukern.code.triton import TritonStandIn

    monkeypatch.setattr(metadata, "version", {"triton": "3.5.1", "torch": "2.13"}.get)
    with pytest.raises(ImportError, match=r"triton is 3\.5\.1, and must be 3\.6 or newer; pip install '"):
        TritonStandIn().install(lambda launch: None)


def test_an_interpreter_that_is_switched_on_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="TRITON_INTERPRET is set"):
        run(tmp_path, "", TRITON_INTERPRET="1")
