"""Tests reading registers, as ptxas reported them, and a hash of the code; see data/README.md."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvrtc_compiler import ARCHITECTURES, compiled, needs_nvrtc

from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.cubin import registers

DATA = Path(__file__).parents[1] / "data"
KERNELS = {"plain", "spilling", "array", "places", "both", "dividing", "calling"}


def image_of(name):
    return gzip.decompress((DATA / f"{name}.cubin.gz").read_bytes())


IMAGES = {name: image_of(name) for name in ("kernels.cuda-12.9.sm_75", "kernels.cuda-13.5.sm_90")}
SM_90 = IMAGES["kernels.cuda-13.5.sm_90"]


@pytest.mark.parametrize("name", IMAGES)
def test_registers_are_those_that_ptxas_said(name):
    said = (DATA / f"{name}.txt").read_text()
    found = re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", said, re.DOTALL)
    expected = {kernel: int(count) for kernel, count in found}
    assert expected.keys() == KERNELS
    assert len(set(expected.values())) > 3
    assert registers(IMAGES[name]) == expected


# variables

SOURCE = """
{of}
extern "C" __global__ void k(double *x, int j) {{ {does}; }}
"""


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("of", "does", "expected"),
    [
        ("", "x[0] = exp(x[1])", False),
        ("", "x[0] = sin(x[1])", False),  # has tables of CUDA's
        ("", "__shared__ double held[64]; held[j] = x[j]; __syncthreads(); x[0] = held[0]", False),
        ("__constant__ int rounds;", "for (j = 0; j < rounds; ++j) x[j] *= 2", True),
        ("__constant__ int rounds = 5;", "for (j = 0; j < rounds; ++j) x[j] *= 2", True),
        ("__device__ int rounds;", "for (j = 0; j < rounds; ++j) x[j] *= 2", True),
        ("static __device__ int rounds = 3;", "for (j = 0; j < rounds; ++j) x[j] *= 2; ++rounds", True),
    ],
)
def test_variables_are_found_which_a_program_may_set(of, does, expected, architecture):
    source = SOURCE.format(of=of, does=does)
    assert cubin.has_variables(compiled(source, f"sm_{architecture}")) is expected


def test_a_module_of_numba_has_no_variables_but_its_own():
    assert not cubin.has_variables(image_of("numba-first.cuda-13.0.sm_90"))
    assert cubin.has_variables(b"no cubin")


# bytes that are none


@pytest.mark.parametrize("image", [b"", b"\x7fELF", bytes(64), b"\x50\xed\x55\xba" + bytes(200), SM_90[:64]])
def test_what_cannot_be_read_has_no_kernels_and_no_hash(image):
    assert registers(image) == {}
    assert cubin.code_sha256(image) is None


@given(st.binary(max_size=300))
def test_no_bytes_are_an_error(content):
    assert registers(content) == {}
    assert registers(SM_90[:64] + content) == {}


READ = (".symtab", ".strtab", ".shstrtab", ".nv.info", ".text.calling")


@settings(max_examples=150)
@given(st.data())
def test_no_damage_is_an_error(data):
    image = IMAGES[data.draw(st.sampled_from(sorted(IMAGES)))]
    header, start, size = places_of(image)[data.draw(st.sampled_from(READ))]
    made = bytearray(image)
    for _ in range(data.draw(st.integers(1, 6))):
        places = st.integers(0, 63) | st.integers(header, header + 63) | st.integers(start, start + size - 1)
        made[data.draw(places)] = data.draw(st.integers(0, 255))
    assert all(count >= 0 for count in registers(bytes(made)).values())
    cubin.code_sha256(bytes(made))


def places_of(image):
    """Section → (header's offset, offset of the content, its size)."""
    (table,) = struct.unpack_from("<Q", image, 40)
    count, names = struct.unpack_from("<HH", image, 60)
    (texts,) = struct.unpack_from("<Q", image, table + 64 * names + 24)
    places = {}
    for header in range(table, table + 64 * count, 64):
        name, *_ = struct.unpack_from("<I", image, header)
        section = image[texts + name : image.index(b"\0", texts + name)].decode()
        places[section] = (header, *struct.unpack_from("<QQ", image, header + 24))
    return places


# a hash of the code

FIRST, LATER = (image_of(f"numba-{which}.cuda-13.0.sm_90") for which in ("first", "later"))
"""One kernel of Numba's, compiled before and after another one of the process."""


def test_names_and_source_information_are_not_in_the_hash_of_the_code():
    assert FIRST != LATER
    assert cubin.code_sha256(FIRST) == cubin.code_sha256(LATER)
    assert len({cubin.code_sha256(image) for image in (FIRST, *IMAGES.values())}) == 3


def test_every_byte_that_is_executed_or_read_is_in_the_hash():
    whole, changes = cubin.code_sha256(FIRST), {}
    for section, (_, start, size) in places_of(FIRST).items():
        if size:
            changed = bytearray(FIRST)
            changed[start] ^= 1
            kind = section.partition("._Z")[0]
            changes[kind] = cubin.code_sha256(bytes(changed)) != whole
    del changes[".nv.global"]  # which is in no file: what lies there belongs to another section
    assert {kind for kind, differs in changes.items() if differs} == {
        *(".text", ".nv.constant0", ".nv.constant4")
    }
    assert {".strtab", ".note.nv.tkinfo", ".debug_frame"} <= changes.keys()


def test_a_module_that_launches_kernels_from_the_device_is_told_by_its_symbols():
    launching = image_of("launches.cuda-13.0.sm_90")
    assert cubin.launches_from_device(launching)
    assert not any(cubin.launches_from_device(image) for image in (FIRST, *IMAGES.values()))
    for other in (b"", b"no cubin", launching[: len(launching) // 2]):
        assert not cubin.launches_from_device(other)
