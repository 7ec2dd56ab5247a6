"""Spills told apart from other local memory, held against what ptxas said; see data/README.md."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.cubin import Spills, registers, spills

DATA = Path(__file__).parents[1] / "data"
NEW = ("spills.cuda-12.9.sm_75", "spills.cuda-13.5.sm_90", "spills.cuda-13.5.sm_120")
OLD = "spills.cuda-12.4.sm_80"
KERNELS = {"plain", "spilling", "array", "places", "both", "dividing", "calling"}


def image_of(name):
    return gzip.decompress((DATA / f"{name}.cubin.gz").read_bytes())


IMAGES = {name: image_of(name) for name in (*NEW, OLD)}
SM_90 = IMAGES["spills.cuda-13.5.sm_90"]


def said_by_ptxas(name):
    """Kernel or function → (bytes of its stack frame, its spills)."""
    said = (DATA / f"{name}.txt").read_text()
    pattern = r"for (\S+)\n +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    found = re.findall(pattern, said)
    return {each[0]: (int(each[1]), Spills(int(each[2]), int(each[3]))) for each in found}


@pytest.mark.parametrize("name", NEW)
def test_what_a_kernel_spills_is_what_ptxas_said(name):
    said, found = said_by_ptxas(name), spills(IMAGES[name])
    assert set(found) == KERNELS
    assert {kernel: found[kernel] for kernel in KERNELS - {"calling"}} == {
        kernel: said[kernel][1] for kernel in KERNELS - {"calling"}
    }
    assert all(found[kernel].store_bytes > 0 < found[kernel].load_bytes for kernel in ("spilling", "both"))


@pytest.mark.parametrize("name", NEW)
def test_arrays_are_not_taken_for_spills(name):
    said, found = said_by_ptxas(name), spills(IMAGES[name])
    for kernel in ("array", "places"):
        assert said[kernel][0] > 0
        assert found[kernel] == Spills(0, 0)


@pytest.mark.parametrize("name", NEW)
def test_registers_that_a_called_function_saves_make_it_unknown(name):
    """ptxas counts them for the function, and lists them nowhere."""
    assert said_by_ptxas(name)["_Z9fibonaccii"][1].store_bytes > 0
    assert spills(IMAGES[name])["calling"] is None


def test_of_a_compiler_that_lists_no_spills_nothing_is_known():
    assert said_by_ptxas(OLD)["spilling"][1].store_bytes > 0
    assert spills(IMAGES[OLD]) == dict.fromkeys(KERNELS)


@pytest.mark.parametrize("name", [*NEW, OLD])
def test_registers_are_those_that_ptxas_said(name):
    said = (DATA / f"{name}.txt").read_text()
    found = re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", said, re.DOTALL)
    expected = {kernel: int(count) for kernel, count in found}
    assert expected.keys() == KERNELS
    assert len(set(expected.values())) > 3
    assert registers(IMAGES[name]) == expected


# changed images


def place_of(image, section):
    """(header's offset, offset of the content, its size) of a section."""
    (table,) = struct.unpack_from("<Q", image, 40)
    count, names = struct.unpack_from("<HH", image, 60)
    (texts,) = struct.unpack_from("<Q", image, table + 64 * names + 24)
    for number in range(count):
        header = table + 64 * number
        name, *_ = struct.unpack_from("<I", image, header)
        if image[texts + name : image.index(b"\0", texts + name)] == section.encode():
            return (header, *struct.unpack_from("<QQ", image, header + 24))
    raise LookupError(section)


def changed(image, offset, form, *values):
    made = bytearray(image)
    struct.pack_into(form, made, offset, *values)
    return bytes(made)


def in_facts(kernel, pattern):
    """Offset of the first match of a pattern in a kernel's attributes."""
    _, start, size = place_of(SM_90, f".nv.info.{kernel}")
    return start + re.search(pattern, SM_90[start : start + size], re.DOTALL).end()


TOOLKIT = rb"\x04\x37\x04\x00"
LIST = rb"\x04\x55.."


@pytest.mark.parametrize(("toolkit", "known"), [(125, False), (126, True), (139, True), (140, False)])
def test_only_toolkits_that_list_spills_as_was_seen_are_believed(toolkit, known):
    found = spills(changed(SM_90, in_facts("array", TOOLKIT), "<I", toolkit))
    assert found["array"] == (Spills(0, 0) if known else None)
    assert found["plain"] == Spills(0, 0)


@pytest.mark.parametrize("sm", [61, 99, 130])
def test_of_an_architecture_that_was_not_compared_nothing_is_known(sm):
    assert spills(changed(SM_90, 49, "B", sm)) == dict.fromkeys(KERNELS)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [(0, "B", 0x50), (4, "B", 1), (5, "B", 2), (7, "B", 3), (8, "B", 9), (18, "<H", 62), (58, "<H", 40)],
    ids=["magic", "32 bits", "big-endian", "Linux", "ABI 9", "x86", "sections of 40 bytes"],
)
def test_what_is_no_cubin_of_a_known_form_has_no_kernels(offset, form, value):
    assert spills(changed(SM_90, offset, form, value)) == {}


def test_an_annotation_of_another_kind_makes_it_unknown():
    assert spills(changed(SM_90, in_facts("spilling", LIST), "<I", 2))["spilling"] is None


@pytest.mark.parametrize("offset", [0, 8, 1 << 30], ids=["another operation", "within one", "beyond"])
def test_an_annotation_of_what_is_no_local_access_makes_it_unknown(offset):
    assert spills(changed(SM_90, in_facts("spilling", LIST) + 4, "<I", offset))["spilling"] is None


def first_spill():
    _, code, _ = place_of(SM_90, ".text.spilling")
    (offset,) = struct.unpack_from("<I", SM_90, in_facts("spilling", LIST) + 4)
    return code + offset


@pytest.mark.parametrize(("width", "size"), list(enumerate((1, 1, 2, 2, 4, 8, 16))))
def test_an_instruction_counts_with_the_bytes_that_it_moves(width, size):
    at, known = first_spill(), spills(SM_90)["spilling"]
    low, high = struct.unpack_from("<QQ", SM_90, at)
    assert (low & 0xFFF, high >> 9 & 7) == (0x387, 4)
    found = spills(changed(SM_90, at + 8, "<Q", high & ~(7 << 9) | width << 9))["spilling"]
    assert found == Spills(known.store_bytes - 4 + size, known.load_bytes)


def test_a_width_that_does_not_exist_makes_it_unknown():
    (high,) = struct.unpack_from("<Q", SM_90, first_spill() + 8)
    assert spills(changed(SM_90, first_spill() + 8, "<Q", high | 7 << 9))["spilling"] is None


@pytest.mark.parametrize(("unlisted", "known"), [(8191, True), (8192, False)])
def test_a_list_that_may_have_been_too_long_to_be_written_makes_it_unknown(unlisted, known):
    """Of 12681 instructions ptxas listed 4489: 8192 fewer, since its length has 16 bits."""
    store = struct.pack("<QQ", 0x387, 4 << 9)
    nothing = struct.pack("<QQ", 0x918, 0)
    found = cubin._moved(nothing * 9000 + store * (2 + unlisted), [9000 * 16, 9001 * 16])
    assert found == (Spills(8, 0) if known else None)


def test_spills_to_shared_memory_are_none_to_local():
    (low,) = struct.unpack_from("<Q", SM_90, first_spill())
    known = spills(SM_90)["spilling"]
    found = spills(changed(SM_90, first_spill(), "<Q", low & ~0xFFF | 0x388))["spilling"]
    assert found == Spills(known.store_bytes - 4, known.load_bytes)


def test_a_call_that_leaves_the_kernels_section_makes_it_unknown():
    image = cubin._Cubin.of(SM_90)
    number = {symbol.name: index for index, symbol in enumerate(image.symbols)}
    _, calls, size = place_of(SM_90, ".nv.callgraph")
    assert struct.unpack_from("<iiiiiiii", SM_90, calls) == (0, -1, 0, -2, 0, -3, 0, -4)
    assert size == 32
    # Overwrites a heading that has nothing below it.
    for caller, called in (("both", "plain"), ("both", "array")):
        made = changed(SM_90, calls + 8, "<ii", number[caller], number[called])
        assert [name for name, found in spills(made).items() if found is None] == ["calling", "both"]
    indirect = changed(SM_90, calls + 24, "<ii", number["both"], 3300)
    assert [name for name, found in spills(indirect).items() if found is None] == ["calling", "both"]
    supplied = next(index for index, symbol in enumerate(image.symbols) if symbol.section == 0)
    assert spills(changed(SM_90, calls + 8, "<ii", number["both"], supplied))["both"] is not None


def test_without_a_list_of_calls_nothing_is_known():
    header, _, _ = place_of(SM_90, ".nv.callgraph")
    assert spills(changed(SM_90, header, "<I", 1)) == dict.fromkeys(KERNELS)


def test_a_damaged_kernel_does_not_hide_the_others():
    header, _, _ = place_of(SM_90, ".nv.info.both")
    found = spills(changed(SM_90, header + 32, "<Q", 1 << 60))
    assert found["both"] is None
    assert found["spilling"] == spills(SM_90)["spilling"]


# bytes that are none


@pytest.mark.parametrize("image", [b"", b"\x7fELF", bytes(64), b"\x50\xed\x55\xba" + bytes(200), SM_90[:64]])
def test_what_cannot_be_read_has_no_kernels(image):
    assert spills(image) == registers(image) == {}


@given(st.binary(max_size=300))
def test_no_bytes_are_an_error(content):
    assert spills(content) == registers(content) == {}
    assert spills(SM_90[:64] + content) == registers(SM_90[:64] + content) == {}


@given(st.integers(0, len(SM_90)))
def test_a_part_of_an_image_is_no_error(length):
    assert set(spills(SM_90[:length])) <= KERNELS
    assert set(registers(SM_90[:length])) <= KERNELS


READ = (".symtab", ".strtab", ".shstrtab", ".nv.callgraph", ".nv.info", ".nv.info.spilling", ".text.calling")


@settings(max_examples=150)
@given(st.data())
def test_no_damage_is_an_error(data):
    image = IMAGES[data.draw(st.sampled_from(sorted(IMAGES)))]
    header, start, size = place_of(image, data.draw(st.sampled_from(READ)))
    made = bytearray(image)
    for _ in range(data.draw(st.integers(1, 6))):
        places = st.integers(0, 63) | st.integers(header, header + 63) | st.integers(start, start + size - 1)
        made[data.draw(places)] = data.draw(st.integers(0, 255))
    for found in spills(bytes(made)).values():
        assert found is None or (found.store_bytes >= 0 and found.load_bytes >= 0)
    assert all(count >= 0 for count in registers(bytes(made)).values())


# a hash of the code

FIRST, LATER = (image_of(f"numba-{which}.cuda-13.0.sm_90") for which in ("first", "later"))
"""One kernel of Numba's, compiled before and after another one of the process."""


def test_names_and_what_tells_of_sources_are_not_in_the_hash_of_the_code():
    assert FIRST != LATER
    assert cubin.code_sha256(FIRST) == cubin.code_sha256(LATER)
    assert len({cubin.code_sha256(image) for image in (FIRST, *IMAGES.values())}) == 5


def test_every_byte_that_is_executed_or_read_by_it_is():
    whole, changes = cubin.code_sha256(FIRST), {}
    for section in cubin._Cubin.of(FIRST).sections:
        if section.size:
            changed = bytearray(FIRST)
            changed[section.start] ^= 1
            kind = section.name.partition("._Z")[0]
            changes[kind] = cubin.code_sha256(bytes(changed)) != whole
    del changes[".nv.global"]  # which is in no file: what lies there belongs to another section
    assert {kind for kind, differs in changes.items() if differs} == {
        *(".text", ".nv.constant0", ".nv.constant4"),
    }
    assert {".strtab", ".note.nv.tkinfo", ".debug_frame"} <= changes.keys()


@pytest.mark.parametrize("image", [b"", b"PTX", b"\x7fELF" + bytes(60), FIRST[:900]])
def test_of_what_is_no_cubin_or_a_damaged_one_there_is_no_hash(image):
    assert cubin.code_sha256(image) is None
