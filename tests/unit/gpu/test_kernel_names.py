"""Mangled names → names for people."""

from __future__ import annotations

import ctypes

import pytest

from pytest_gpukern.gpu import kernel_facts as kernel_names
from pytest_gpukern.gpu.kernel_facts import demangle, fitted, readable

TAGS = "B2v2B94cw51cXTLSUwv1sCUt9Ww0FEw09RRQPKzLTg4gaGKFsG2oMQGEYakJSQB1PQBk0Bynm21OiwU1a0UoLGhDpQE8oxrNQE_3d"
NUMBA = f"_ZN6cudapy6suites8on_numba4make12_3clocals_3e11grid_stride{TAGS}E5ArrayIfLi2E1A8readonly7alignedEx"
LAMBDA = f"_ZN6cudapy6suites12_3clambda_3e{TAGS}E5ArrayIdLi1E1C7mutable7alignedE"
TORCH = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_18TensorIteratorBaseE"
    "ENKUlvE0_clEvENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_"
)
CUB = "_ZN3cub18CUDA_200400_900_NS11EmptyKernelIvEEvv"


def has_a_demangler():
    return kernel_names._demangler() is not None


needs_a_demangler = pytest.mark.skipif(not has_a_demangler(), reason="no C++ run time to load")


@needs_a_demangler
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (NUMBA, "grid_stride(Array<float, 2, A, readonly>, long long)"),
        (LAMBDA, "<lambda>(Array<double, 1, C>)"),
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
    kernel_names._demangler.cache_clear()
    readable.cache_clear()
    try:
        assert demangle(NUMBA) is None
        assert readable(NUMBA) == NUMBA
    finally:
        kernel_names._demangler.cache_clear()
        readable.cache_clear()


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
