"""Reads from a cubin its kernels' registers, a hash of its code, and whether it launches other kernels.

NVIDIA documents only the names that `cuobjdump -elf` prints. We rely on what we saw in its output; anything
else makes the answer empty.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

# ELF: 64 bits, little-endian; the CUDA part as `readelf` shows and `cuobjdump -elf` names it.
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CUDA_MACHINE = 190
_ABIS = frozenset({(0x33, 7), (0x41, 8)})
"""OS ABI and its version in CUDA 12 and 13."""
_ENTRY = 0x10  # STO_CUDA_ENTRY: a kernel

# Attributes of .nv.info: format, attribute, then two bytes: the value, or the length of a longer one.
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # EIFMT_SVAL
_FORMATS = frozenset({1, 2, 3, _SIZED})
_REGISTER_COUNT = 0x2F  # the symbol's number and the registers of a thread
_PAIR = struct.Struct("<II")
_DEVICE_LAUNCHES = ("cudaLaunchDevice", "__cudaCDP2LaunchDevice")
_OBJECT = 1  # STT_OBJECT: a variable
_MEMORY = (".nv.constant", ".nv.global")
_UNCHANGED = ("__cudart_", "$str", "_ZN08NumbaEnv")
"""Beginnings of the names of variables that nobody sets: tables of `sin`, texts of `printf`, Numba's own."""
_CODE = (".text.", ".nv.constant", ".nv.global.init")
"""Prefixes of the names of sections that hold code and initial memory."""
_DAMAGED = (struct.error, ValueError, IndexError)


def registers(image: bytes) -> dict[str, int]:
    """Returns mangled name → registers a thread for each kernel of a cubin, as `ptxas -v` reports them.

    Empty if the image is damaged or no cubin.
    """
    sections, symbols = _read(image)
    facts = [section.content for section in sections if section.name == ".nv.info"]
    try:
        pairs = [
            _PAIR.unpack(content)
            for part in facts
            for attribute, content in _attributes(part)
            if attribute == _REGISTER_COUNT
        ]
        named = ((symbols[number], count) for number, count in pairs)
        return {symbol.name: count for symbol, count in named if symbol.is_kernel}
    except _DAMAGED:
        return {}


def launches_from_device(image: bytes) -> bool:
    """Returns whether a module has kernels that launch kernels or graphs through CUDA's device runtime.

    We look for functions of that runtime linked into it: the versions of `cudaLaunchDevice`
    (`__cudaCDP2LaunchDeviceV2` in CUDA 12 and 13) and `cudaGraphLaunch`. False for a module that is damaged
    or no cubin.
    """
    names = [symbol.name for symbol in _read(image)[1]]
    return any(name.startswith(_DEVICE_LAUNCHES) or name == "cudaGraphLaunch" for name in names)


def has_variables(image: bytes) -> bool:
    """Returns whether a module has variables in constant or global memory, which a program may set.

    True for a module that is damaged or no cubin.
    """
    sections, symbols = _read(image)
    return not sections or any(
        symbol.is_variable and symbol.section.startswith(_MEMORY) and not symbol.name.startswith(_UNCHANGED)
        for symbol in symbols
    )


def code_sha256(image: bytes) -> str | None:
    """Returns a hash of what a cubin executes: instructions, constants, initial values, in file order.

    Names are left out: Numba numbers the functions of a process, so one kernel has several names. Returns
    None if the image is damaged or no cubin.
    """
    sections, _ = _read(image)
    digest = hashlib.sha256()
    for section in sections:
        kind = next((prefix for prefix in _CODE if section.name.startswith(prefix)), None)
        if kind is not None:
            digest.update(f"{kind} {len(section.content)}:".encode())
            digest.update(section.content)
    return digest.hexdigest() if sections else None


class _Section(NamedTuple):
    name: str
    content: bytes
    link: int


class _Symbol(NamedTuple):
    name: str
    is_kernel: bool
    is_variable: bool = False
    section: str = ""


def _read(image: bytes) -> tuple[list[_Section], list[_Symbol]]:
    """Returns the sections and symbols of a cubin in file order, since the file refers to them by number.

    There are none if the image is damaged, no cubin, or of a form that we never saw.
    """
    try:
        fields = _HEADER.unpack_from(image)
        (magic, bits, order, _, os_abi, abi, _, machine), table = fields[:8], fields[11]
        entry_size, count, names = fields[16:]
        if (magic, bits, order, machine) != (b"\x7fELF", 2, 1, _CUDA_MACHINE) or (os_abi, abi) not in _ABIS:
            return [], []
        entries = list(_SECTION.iter_unpack(image[table : table + count * entry_size]))
        start, size = entries[names][4:6]
        texts = image[start : start + size]
        sections = [
            _Section(_text(texts, name), image[start : start + size], link)
            for name, _, _, _, start, size, link, _, _, _ in entries
        ]
        table_of_symbols = next((section for section in sections if section.name == ".symtab"), None)
        if table_of_symbols is None:
            return sections, []
        texts = sections[table_of_symbols.link].content
        return sections, [
            _Symbol(
                _text(texts, name),
                bool(other & _ENTRY),
                info & 0xF == _OBJECT,
                sections[place].name if place < len(sections) else "",
            )
            for name, info, other, place, _, _ in _SYMBOL.iter_unpack(table_of_symbols.content)
        ]
    except _DAMAGED:
        return [], []


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _attributes(facts: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields attributes with their contents; ValueError for a format that we never saw."""
    at = 0
    while at < len(facts):
        form, attribute, value = _ATTRIBUTE.unpack_from(facts, at)
        if form not in _FORMATS:
            raise ValueError("an attribute of unknown length")
        at += _ATTRIBUTE.size
        size = value if form == _SIZED else 0
        yield attribute, facts[at : at + size]
        at += size
