"""Kernels of a script are compiled in a process without a GPU, once; the tests read what it found."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

from pytest_gpukern.code.numba import NumbaStandIn
from pytest_gpukern.gpu.fingerprint import library_versions

SCRIPT = """
import json, math, sys
import numpy as np
from pytest_gpukern.code.numba import NumbaStandIn
from pytest_gpukern.gpu import cubin
launches = []
device = NumbaStandIn()
device.install(launches.append)
from numba import cuda as numba_cuda
from numba import cuda, float32, guvectorize, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32
single, double = np.ones(4096, np.float32), np.ones(4096)
@cuda.jit(device=True)
def twice(x):
    return x + x
@cuda.jit
def add(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = twice(a[i])
def powers(a):
    values = cuda.local.array(64, float32)
    for i in range(64):
        values[i] = a[i]
    for _ in range(100):
        for i in range(64):
            values[i] = values[i] * values[(i * 7 + 1) % 64] + values[i]
    for i in range(64):
        a[i] = values[i]
free, bound = cuda.jit(powers), cuda.jit(max_registers=32)(powers)
launch_bounds = cuda.jit(launch_bounds=256)(powers)
def sine(a):
    a[0] = math.sin(a[1]) / a[2]
options = [{}, {"fastmath": True}, {"debug": True, "opt": False}, {"lineinfo": True}, {"lto": False}]
options.append({"cache": True})
@vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
def product(a, b):
    return a * b
@guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target="cuda")
def doubled(a, out):
    for i in range(a.shape[0]):
        out[i] = 2 * a[i]
@cuda.jit
def grid_sync(a):
    a[cuda.grid(1)] += 1
    cuda.cg.this_grid().sync()
    a[0] += a[1]
@cuda.jit
def random(states, a):
    a[0] = xoroshiro128p_uniform_float32(states, 0)
@cuda.jit("void(float32[::1], int32)")
def signed(a, n):
    a[0] = n
twice_signed = cuda.jit(["void(float32[::1], int32)", "void(float64[::1], int32)"])(signed.py_func)
def lists(a):
    values = []
    values.append(a[0])  # in lists
def zeros(a):
    values = np.zeros(4)  # in zeros
    a[0] = values[0]
def run_time_shared(a):
    values = cuda.shared.array(a.size, float32)  # in run_time_shared
    a[0] = values[0]
@cuda.jit(device=True)
def wrong_attribute(x):
    return x.missing  # in calls_wrong
def calls_wrong(a):
    a[0] = wrong_attribute(a[1])
def too_much_shared(a):  # in too_much_shared
    values = cuda.shared.array(100_000, float32)
    values[cuda.threadIdx.x] = a[0]
    a[0] = values[cuda.threadIdx.y]
def wrong_ufunc(a):
    return a.missing  # in wrong_ufunc
alike = {"free": free, "bound": bound, "grid sync": grid_sync, "signed with too few": signed}
alike |= {" ".join(["sine", *each]): cuda.jit(**each)(sine) for each in options}
for kernel in (lists, zeros, run_time_shared, calls_wrong, too_much_shared):
    alike[kernel.__name__] = cuda.jit(kernel)
made = {"cuda": cuda}
exec("def of_exec(a): a[cuda.grid(1)] = 1", made)  # its module is None
alike["of exec"] = cuda.jit(made["of_exec"])
dev = cuda.to_device
def streams(a):
    event = cuda.event()
    for each in (cuda.stream(), cuda.external_stream(1 << 20), cuda.default_stream(), device.stream):
        add[2, 64, each, 128](a, a)
        event.record(each)
    cuda.synchronize()
def arrays():
    for array in (cuda.pinned_array(8), cuda.mapped_array(8), cuda.managed_array(8)):
        add[1, 8](array, array)
    with cuda.pinned(double), cuda.mapped(double) as mapped:
        add[1, 8](mapped, cuda.device_array_like(double))
def after_launch(read):
    a, b = dev(single), cuda.event()
    add[1, 32](a, a)
    read(a, b)
def grid_blocks():
    kernel, *_ = add.overloads.values()
    return kernel.max_cooperative_grid_blocks(128)
answers = {}
CASES = {
    "add": lambda: add[(2, 3), (32, 4), 0, 64](dev(single), dev(single)),
    "add again": lambda: add[7, 64](dev(single), cuda.device_array(99, np.float32)),
    "add double": lambda: add[1, 32](dev(double), dev(double)),
    "host arrays": lambda: add[1, 32](single, single),
    "given": lambda: add[1, 32](device.given(single), device.given(single.copy())),
    "given strided": lambda: add[1, 32](device.given(single[::2]), device.given(single)),
    "given to numba": lambda: numba_cuda.jit(sine)[1, 32](device.given(single)),
    "for all": lambda: add.forall(1000)(dev(single), dev(single)),
    "for all free": lambda: free.forall(10**6)(dev(single)),
    "for all bounded": lambda: launch_bounds.forall(10**6)(dev(single)),
    "specialized": lambda: add.specialize(dev(single), dev(single))[1, 32](dev(single), dev(single)),
    **{name: lambda kernel=kernel: kernel[1, 32](dev(single)) for name, kernel in alike.items()},
    "vectorize": lambda: product(dev(double), dev(double)),
    "guvectorize": lambda: doubled(dev(single.reshape(64, 64))),
    "random": lambda: random[1, 32](create_xoroshiro128p_states(64, seed=1), dev(single)),
    "reduce": lambda: cuda.reduce(lambda a, b: a + b)(dev(double)),
    "assignment": lambda: dev(single).__setitem__(slice(3), 5),
    "streams": lambda: streams(dev(single)),
    "arrays": arrays,
    "occupancy": lambda: after_launch(lambda a, b: grid_blocks()),
    "signed": lambda: signed[1, 1](dev(single), 3),
    "signed double": lambda: signed[1, 1](dev(double), 3),
    "signed twice": lambda: twice_signed[1, 1](dev(double), 3),
    "twice signed integers": lambda: twice_signed[1, 1](dev(single.astype(np.int32)), 3),
    "wrong_ufunc": lambda: vectorize(["float32(float32)"], target="cuda")(wrong_ufunc),
    "no type": lambda: add[1, 1](dev(single), object()),
    "reads before a launch": lambda: np.testing.assert_array_equal(np.asarray(dev(single)), single),
    "copy_to_host": lambda: after_launch(lambda a, b: a.copy_to_host()),
    "asarray": lambda: after_launch(lambda a, b: np.asarray(a)),
    "element": lambda: after_launch(lambda a, b: a[3]),
    "elapsed_time": lambda: after_launch(lambda a, b: b.elapsed_time(b)),
    "attribute": lambda: cuda.get_current_device().PCI_BUS_ID,
    "shared bytes": lambda: after_launch(lambda a, b: add.get_shared_mem_per_block()),
}
def found(name):
    device.begin()
    first, case = len(launches), {"error": None, "launches": []}
    try:
        CASES[name]()
    except Exception as error:
        case["error"] = [type(error).__name__, str(error)]
    for launch in launches[first:]:
        codes = {name: compiled(launch, name) for name in ("sm_80", "sm_90")}
        case["launches"].append({"kernel": launch.kernel, "grid": launch.grid, **codes})
    return case
def compiled(launch, architecture):
    try:
        image, entry, block, shared_bytes = launch.compiled(architecture)
    except Exception as error:
        return [type(error).__name__, str(error)]
    code, registers = cubin.code_sha256(image), cubin.registers(image)[entry]
    facts = dict(block=block, shared_bytes=shared_bytes, image=id(image), made_for=image[49])
    return dict(code=code, registers=registers, **facts)
result = {name: found(name) for name in sys.argv[1:] or CASES}
add[1, 32](single, single)
answers["after"] = device.why_unknown(AssertionError())
device.begin()
answers["before"] = device.why_unknown(AssertionError())
try:
    launches[0].compiled("sm_42")
except ValueError as error:
    answers["unknown"] = str(error)
print(json.dumps(result | {"answers": answers}))
"""


NUMBA, MLIR = "numba-cuda", "numba-cuda-mlir"
FOR_MLIR = {
    "from numba import cuda, float32,": "from numba_cuda_mlir import cuda; from numba_cuda_mlir.types import"
    " float32; from numba import",
    "numba.cuda.random": "numba_cuda_mlir.cuda.random",
    "alike = {": "alike = {'sine chip': cuda.jit(chip='sm_80')(sine), ",
}
"""Turns the script, line by line, into one of numba-cuda-mlir."""
of_numba = pytest.mark.parametrize("script", [NUMBA], indirect=True)
of_mlir = pytest.mark.parametrize("script", [MLIR], indirect=True)


@pytest.fixture(scope="module", params=[NUMBA, MLIR])
def script(request, tmp_path_factory):
    text = SCRIPT
    if request.param == MLIR:
        if not library_versions((MLIR,)):
            pytest.skip("the extra `mlir` is not installed")
        for words, others in FOR_MLIR.items():
            text = text.replace(words, others)
    path = tmp_path_factory.getbasetemp() / request.param / "kernels.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@functools.cache
def run(script, *names, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(script), *names]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(script):
    return run(script)


def launched(found, case, architecture="sm_90"):
    """What the last launch of a case came to."""
    assert found[case]["launches"], found[case]["error"]
    return found[case]["launches"][-1][architecture]


def test_a_launch_has_the_kernel_s_name_and_shape_and_is_compiled_with_its_entry_point(found):
    (launch,) = found["add"]["launches"]
    assert (launch["kernel"], launch["grid"]) == ("add", [2, 3, 1])
    assert launch["sm_90"]["block"] == [32, 4, 1]
    assert launch["sm_90"]["shared_bytes"] == 64
    assert launch["sm_90"]["registers"] > 0


def test_code_differs_by_architecture_and_by_the_types_of_arguments(found):
    codes = [launched(found, "add", "sm_80"), launched(found, "add"), launched(found, "add double")]
    assert len({each["code"] for each in codes}) == 3
    assert [each["made_for"] for each in codes] == [80, 90, 90]


@of_numba
def test_code_differs_by_strides_and_by_fast_math_and_kernels_are_named_as_their_author_named_them(found):
    for case, other in (("given strided", "add"), ("sine fastmath", "sine")):
        assert launched(found, case)["code"] != launched(found, other)["code"]
    for case, name in (("vectorize", "product"), ("guvectorize", "doubled"), ("random", "random")):
        assert found[case]["launches"][-1]["kernel"] == name
        assert launched(found, case)["registers"] > 0
    assert found["reduce"]["launches"][0]["kernel"].startswith("numba.cuda.")


def test_equal_launches_compile_once_and_arrays_of_the_host_have_the_types_of_device_arrays(found):
    cases = "add", "add again", "for all", "given", "host arrays"
    assert len({launched(found, case)["image"] for case in cases}) == 1
    assert launched(found, "specialized")["code"] == launched(found, "add")["code"]


def test_options_reach_the_compilers_and_a_cached_kernel_is_compiled_and_no_file_written(found, script):
    assert launched(found, "free")["registers"] > 64
    assert launched(found, "bound")["registers"] <= 32
    assert launched(found, "sine debug opt")["code"] != launched(found, "sine")["code"]
    assert launched(found, "sine lineinfo")["registers"] == launched(found, "sine")["registers"]
    assert launched(found, "sine lto")["registers"] > 0
    assert launched(found, "sine cache")["code"] == launched(found, "sine")["code"]
    assert not list(script.parent.rglob("*.nbi"))


def test_forall_takes_the_largest_block_that_the_registers_of_the_architecture_allow(found):
    assert launched(found, "for all")["block"] == [1024, 1, 1]
    assert launched(found, "for all bounded")["block"] == [256, 1, 1]
    (threads, *_), registers = (launched(found, "for all free")[each] for each in ("block", "registers"))
    assert 65536 - 128 * registers < threads * registers <= 65536


WORKS = ["grid sync", "streams", "arrays", "signed twice", "signed", "reads before a launch"]
WORKS += ["given to numba"]


@pytest.mark.parametrize("case", WORKS)
def test_what_host_code_does_around_launches_works(found, case):
    assert found[case]["error"] is None
    assert all(launch["sm_80"]["registers"] > 0 for launch in found[case]["launches"])


def test_kernels_of_numba_itself_are_told_from_the_user_s(found):
    of_itself, made = (found[case]["launches"][0]["kernel"] for case in ("assignment", "of exec"))
    assert re.match(r"numba(_cuda_mlir\.numba_)?\.?cuda\.", of_itself)
    assert made == "of_exec"


COMPILERS_SAY = {
    "lists": "Unknown attribute 'append' of type list",
    "zeros": "No implementation of function Function(<built-in function zeros>)",
    "run_time_shared": "No implementation of function Function(<function shared.array>)",
    "calls_wrong": "Unknown attribute 'missing' of type float32",
    "too_much_shared": "Entry function too_much_shared uses too much shared data",
    "wrong_ufunc": "Unknown attribute 'missing' of type float32",
}


OF_MLIR = ("lists", "calls_wrong", "too_much_shared")  # it words the others in its own way


@pytest.mark.parametrize(
    ("script", "case"),
    [*((NUMBA, case) for case in COMPILERS_SAY), *((MLIR, case) for case in OF_MLIR)],
    indirect=["script"],
)
def test_code_that_does_not_compile_is_told_with_the_user_s_line(found, script, case):
    (line,) = [at for at, text in enumerate(SCRIPT.splitlines(), 1) if text.endswith(f"# in {case}")]
    at_import = [found[case]["error"]] if found[case]["error"] else []
    errors = at_import or [found[case]["launches"][0][name] for name in ("sm_80", "sm_90")]
    for kind, message in errors:
        assert kind == "DoesNotCompile"
        assert message.startswith(f"{script}:{line}: {case}: {COMPILERS_SAY[case]}")
        assert len(message.splitlines()) == 1


CALLS_SAY = {
    "twice signed integers": "No matching definition for argument type(s) array(int32, 1d, C)",
    "no type": "Cannot determine Numba type of <class 'object'>",
}


@of_numba
@pytest.mark.parametrize("case", CALLS_SAY)
def test_a_call_that_does_not_fit_is_told_at_the_launch(found, script, case):
    kind, message = found[case]["error"]
    assert kind == "DoesNotCompile"
    assert re.match(rf"{re.escape(str(script))}:\d+: ", message)
    assert CALLS_SAY[case] in message
    assert not found[case]["launches"]


MLIR_SAYS = {
    "signed double": "signed: No matching definition for argument type(s) (Array(float64",
    "signed with too few": "signed: No matching definition for argument type(s)",
    "no type": "add: Cannot determine Numba type of <class 'object'>",
    "sine chip": "sine: jit(chip='sm_80') compiles for that alone: leave it out",
}


@of_mlir
@pytest.mark.parametrize("case", MLIR_SAYS)
def test_a_call_that_does_not_fit_is_told_as_numba_cuda_mlir_compiles_it(found, script, case):
    kind, message = launched(found, case)
    assert kind == "DoesNotCompile"
    assert re.match(rf"{re.escape(str(script))}:\d+: {re.escape(MLIR_SAYS[case])}", message)


READS = ["copy_to_host", "asarray", "element", "elapsed_time", "attribute", "shared bytes", "occupancy"]


@pytest.mark.parametrize("case", READS)
def test_what_only_a_device_computes_cannot_be_known(found, case):
    kind, message = found[case]["error"]
    assert kind == "CannotBeKnown"
    assert "reads what only a device computes" in message


def test_an_error_behind_a_kernel_that_fills_host_memory_is_unknown_and_an_architecture_told(found):
    answers = found["answers"]
    assert "kernels do not run here" in answers["after"]
    assert answers["before"] is None
    assert answers["unknown"].startswith("sm_42: Numba compiles for sm_75, sm_80")


def test_code_is_the_same_in_another_process_that_compiled_in_another_order(found, script):
    cases = ["grid sync", "sine", "free", "add double", "add"]
    again = run(script, *cases, PYTHONHASHSEED="7")
    for case in cases:
        for architecture in ("sm_80", "sm_90"):
            assert launched(again, case, architecture)["code"] == launched(found, case, architecture)["code"]


@pytest.mark.parametrize("version", ["0.30.3", "0.31.0"])
def test_another_version_of_numba_cuda_is_refused_with_the_remedy(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(ImportError, match=rf"{version}.*>=0\.30\.4,<0\.31.*pytest-gpukern\[code\]"):
        NumbaStandIn().install(print)


@pytest.mark.parametrize("version", ["0.5.4", "0.7.0"])
def test_another_version_of_numba_cuda_mlir_is_refused_as_it_is_imported(tmp_path, version):
    folder = tmp_path / f"numba_cuda_mlir-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: numba-cuda-mlir\nVersion: {version}\n")
    (tmp_path / "numba_cuda_mlir").mkdir()
    (tmp_path / "numba_cuda_mlir/cuda.py").touch()
    installs = "from pytest_gpukern.code.numba import NumbaStandIn; NumbaStandIn().install(print)"
    code = f"{installs}; from numba_cuda_mlir import cuda"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    error = rf"ImportError: numba-cuda-mlir is {version}, and must be >=0\.6,<0\.7; .*pytest-gpukern\[mlir\]"
    assert re.search(error, done.stderr), done.stderr


@of_numba
def test_the_simulator_is_refused(script):
    with pytest.raises(AssertionError, match="NUMBA_ENABLE_CUDASIM is on"):
        run(script, NUMBA_ENABLE_CUDASIM="1")
