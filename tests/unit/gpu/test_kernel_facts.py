"""Tests the facts of a call's kernels, their readable names and their occupancy."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import SimpleNamespace

import pytest
from msgspec import structs

from pytest_gpukern.gpu import kernel_facts as kernel_names
from pytest_gpukern.gpu.kernel_facts import (
    autotuned,
    demangle,
    fitted,
    kernel_facts,
    readable,
    with_occupancy,
)
from pytest_gpukern.values.result import DeviceWork, KernelFacts

SEEN = KernelFacts("exp_kernel", 40, 128, 3072, grid=(100, 1, 1), block=(256, 1, 1), symbol="exp_kernel")
COPY = DeviceWork("memcpy", "memcpy HtoD, pageable", 2.0, 1e6, 8e6)
EXP = DeviceWork("kernel", "exp_kernel", 2.0, 5e4, kernel=SEEN)


def test_kernels_have_facts_and_copies_have_none():
    code = {("exp_kernel", 40): "beef"}
    (facts,) = kernel_facts([COPY, EXP], (9, 0), lambda *requested: code.get(requested))
    assert facts == structs.replace(
        SEEN, blocks_per_sm=6, occupancy=0.75, limited_by="40 registers a thread", machine_code_sha256="beef"
    )


def test_what_is_not_known_is_none():
    for capability in (None, (5, 2), (9, 9), (13, 0)):
        (facts,) = kernel_facts([EXP], capability)
        assert (facts.blocks_per_sm, facts.occupancy, facts.limited_by) == (None, None, None)
        assert facts.machine_code_sha256 is None


TAGS = "B2v2B94cw51cXTLSUwv1sCUt9Ww0FEw09RRQPKzLTg4gaGKFsG2oMQGEYakJSQB1PQBk0Bynm21OiwU1a0UoLGhDpQE8oxrNQE_3d"
NUMBA = f"_ZN6cudapy6suites8on_numba4make12_3clocals_3e11grid_stride{TAGS}E5ArrayIfLi2E1A8readonly7alignedEx"
LAMBDA = f"_ZN6cudapy6suites12_3clambda_3e{TAGS}E5ArrayIdLi1E1C7mutable7alignedE"
TORCH = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_18TensorIteratorBaseE"
    "ENKUlvE0_clEvENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_"
)
CUB = "_ZN3cub18CUDA_200400_900_NS11EmptyKernelIvEEvv"


needs_a_demangler = pytest.mark.skipif(kernel_names._demangler() is None, reason="no C++ run time to load")


@needs_a_demangler
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (NUMBA, "grid_stride(Array<float, 2, A, readonly>, long long)"),
        (LAMBDA, "<lambda>(Array<double, 1, C>)"),
        (NUMBA.replace(TAGS, ""), "grid_stride(Array<float, 2, A, readonly>, long long)"),
        ("_Z2rk5ArrayI6RecordILi3854EELi1E1C7mutable7alignedE", "rk(Array<Record, 1, C>)"),
        ("_Z10doublify_kPfi", "doublify_k(float*, int)"),
        (CUB, "cub::EmptyKernel<void>()"),
        ("_ZN12_GLOBAL__N_14fillEPd", "fill(double*)"),
        ("_ZN2ns1fB5cxx11Ev", "ns::f()"),
    ],
)
def test_a_name_is_read_without_what_only_the_compiler_needs(name, shown):
    assert readable(name) == shown


@pytest.mark.parametrize("name", ["cupy_exp__float32_float32", "block_3e", "_Zbroken", "", "_Z" + "x" * 9000])
def test_a_name_that_is_not_mangled_stays_as_it_is(name):
    assert demangle(name) is None
    assert readable(name) == name


@pytest.mark.parametrize("name", ["add", "kernels::make::_3clocals_3e::add"])
def test_all_tags_in_one_bracket_as_in_line_information_are_left_out(name):
    assert readable(f"{name}[abi:v1,cw51cXTLSUwv1sDUaKthqaNgoKmjgMVuW1AiA8rAEg2UjxRKtuAI0FEA2g]") == "add"
    assert readable(f"{name}[0]") == f"{name}[0]"


@needs_a_demangler
def test_a_structure_has_no_number_which_says_only_how_many_types_a_process_had():
    states = "5ArrayI6RecordILi{}EELi1E1C7mutable7alignedE"
    names = {f"_ZN8on_numba5count{TAGS}E{states.format(number)}x" for number in (460, 472)}
    assert len(names) == 2
    assert {readable(name) for name in names} == {"count(Array<Record, 1, C>, long long)"}
    assert readable("_Z5countI6RecordILi460EEEvv") == "count<Record<460>>()", "somebody's template"


def test_without_a_cpp_run_time_names_stay_mangled(monkeypatch):
    def missing(library):
        raise OSError(f"{library}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(kernel_names, "_demangler", kernel_names._demangler.__wrapped__)
    assert demangle(NUMBA) is None
    assert readable.__wrapped__(NUMBA) == NUMBA


@needs_a_demangler
def test_parameters_go_before_template_arguments_where_a_name_is_too_long():
    name = readable(TORCH)
    assert fitted(name, len(name)) == name
    assert fitted(name, 250).endswith("std::array<char*, 2ul>>(…)")
    assert fitted(name, 60) == "at::native::vectorized_elementwise_kernel<…>(…)"
    assert fitted(name, 10) == "at::native::vectorized_elementwise_kernel<…>(…)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a_name_without_any_brackets", "a_name_without_any_brackets"),
        ("f()", "f()"),
        ("f<g(int)>", "f<…>"),
        ("operator>>(int, long, float)", "operator>>(…)"),
        ("<lambda>(Array<double, 1, C>)", "<lambda>(…)"),
        ("broken)", "broken)"),
    ],
)
def test_only_pairs_of_brackets_are_emptied(name, shown):
    assert fitted(name, 3) == shown


def launch(threads, registers=32, static=0, dynamic=0):
    return KernelFacts("k", registers, 0, static + dynamic, grid=(1000, 1, 1), block=(threads, 1, 1))


# Capability, registers, threads, static and dynamic shared bytes, and what
# cudaOccMaxActiveBlocksPerMultiprocessor of CUDA 13.3's cuda_occupancy.h says for it.
CALCULATED = [
    ((7, 0), 33, 512, 8192, 20000, 3),
    ((7, 0), 96, 96, 49152, 1000, 1),
    ((7, 0), 40, 192, 12000, 90000, 0),
    ((7, 2), 128, 64, 32768, 60000, 1),
    ((7, 5), 16, 33, 0, 0, 16),
    ((7, 5), 8, 192, 20000, 1000, 3),
    ((8, 0), 65, 640, 0, 90000, 1),
    ((8, 0), 32, 33, 100, 1000, 32),
    ((8, 6), 65, 96, 512, 1000, 9),
    ((8, 6), 96, 192, 20000, 0, 3),
    ((8, 7), 56, 256, 1024, 1000, 4),
    ((8, 7), 100, 33, 4096, 0, 8),
    ((8, 9), 24, 384, 16384, 0, 4),
    ((9, 0), 200, 64, 20000, 90000, 2),
    ((9, 0), 8, 128, 8192, 60000, 3),
    ((9, 0), 255, 384, 49152, 1000, 0),
    ((10, 0), 24, 192, 8192, 1000, 10),
    ((10, 0), 255, 32, 32768, 20000, 4),
    ((10, 3), 40, 192, 20000, 0, 8),
    ((11, 0), 33, 640, 512, 90000, 2),
    ((11, 0), 64, 32, 32768, 0, 6),
    ((12, 0), 63, 96, 8192, 90000, 1),
    ((12, 1), 64, 384, 12000, 20000, 2),
]


@pytest.mark.parametrize(("capability", "registers", "threads", "static", "dynamic", "blocks"), CALCULATED)
def test_as_many_blocks_fit_as_nvidias_calculator_says(
    capability, registers, threads, static, dynamic, blocks
):
    facts = with_occupancy(launch(threads, registers, static, dynamic), capability)
    assert (facts.blocks_per_sm or 0) == blocks


@pytest.mark.parametrize(
    ("shape", "capability", "words"),
    [
        (launch(256), (9, 0), None),  # all warps
        (launch(32), (9, 0), "32 blocks a multiprocessor"),
        (launch(1024), (8, 6), "blocks of 1024 threads"),
        (launch(128, static=16 * 1024), (8, 0), "17 KiB of shared memory a block"),
        (launch(128, dynamic=16 * 1024), (7, 0), "16 KiB of shared memory a block"),
        (launch(128, registers=80, static=40 * 1024 - 1024), (9, 0), "40 KiB of shared memory a block"),
        (launch(512, registers=64), (9, 0), "64 registers a thread"),
        (launch(768, registers=64), (9, 0), "64 registers a thread"),
        (launch(768, registers=8), (9, 0), "blocks of 768 threads"),
        (launch(32, registers=64), (7, 5), "16 blocks a multiprocessor"),
        (
            launch(64, registers=96, static=21 * 1024),
            (9, 0),
            "96 registers a thread and 22 KiB of shared memory a block",
        ),
    ],
)
def test_the_limit_of_the_occupancy_is_named_with_its_figure(shape, capability, words):
    assert with_occupancy(shape, capability).limited_by == words


def test_a_block_has_three_dimensions():
    cube = KernelFacts("k", 32, 0, 0, grid=(1, 1, 1), block=(8, 8, 8))
    assert with_occupancy(cube, (9, 0)).occupancy == with_occupancy(launch(512), (9, 0)).occupancy > 0


class Autotuner:
    """Triton's, as far as it tells what it chose; before its first call it has no `best_config`."""

    def __init__(self, function, warps=None, **values):
        self.base_fn = function
        if warps:
            chosen = {**values, "num_warps": warps, "maxnreg": None}
            self.best_config = SimpleNamespace(num_warps=warps, all_kwargs=lambda: chosen)


class BoundKernel:
    """Helion's 1.2.0, as far as it tells what it launches; before its first call its `_config` is None."""

    def __init__(self, name, config, configs=()):
        self.kernel, self._config = SimpleNamespace(name=name, configs=list(configs)), config


def test_what_helions_autotuner_chose_is_known_by_the_kernels_it_launched(monkeypatch):
    monkeypatch.setitem(sys.modules, "helion.runtime.kernel", SimpleNamespace(BoundKernel=BoundKernel))
    launched = [structs.replace(SEEN, name=f"_helion_{name}") for name in ("add", "given")]
    config = {"block_sizes": [64, 32], "num_warps": 8, "num_stages": 2}
    bound = [BoundKernel("add", None), BoundKernel("add", config), BoundKernel("given", config, [config])]
    chosen = {"block_sizes": "[64, 32]", "num_warps": "8", "num_stages": "2"}
    assert autotuned(launched) == {"_helion_add": chosen}
    bound.append(BoundKernel("add", config | {"num_warps": 4}))  # of other arguments, launched 128 threads
    assert autotuned(launched) == {"_helion_add": chosen}
    bound.append(BoundKernel("add", config | {"num_stages": 3}))
    assert autotuned(launched) == {}, "either of them may have launched it"


def test_what_tritons_autotuner_chose_is_known_by_the_kernels_it_launched(monkeypatch):
    def softmax():
        """Stands for the kernel's source."""

    launched = [structs.replace(SEEN, name="softmax"), SEEN]
    assert autotuned(launched) == {}, "Triton was not imported"
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", SimpleNamespace(Autotuner=Autotuner))
    tuners = [Autotuner(softmax), Autotuner(softmax, 8, BLOCK=64), Autotuner(len, 8)]
    assert autotuned(launched) == {"softmax": {"BLOCK": "64", "num_warps": "8"}}
    tuners.append(Autotuner(softmax, 4, BLOCK=32))  # of another test: it launched 128 threads
    assert autotuned(launched) == {"softmax": {"BLOCK": "64", "num_warps": "8"}}
    gc.freeze()
    try:
        assert autotuned(launched) == {}, "the collector no longer tells of them"
        monkeypatch.setattr(kernel_names, "tuned", tuners[1], raising=False)
        assert autotuned(launched) == {"softmax": {"BLOCK": "64", "num_warps": "8"}}
    finally:
        gc.unfreeze()
    tuners.append(Autotuner(softmax, 8, BLOCK=128))
    assert autotuned(launched) == {}, "either of them may have launched it"
