"""Reads what a cubin tells of its kernels: registers, a hash of what is executed, whether it launches others.

Bytes in, values out.

NVIDIA documents none of this beyond the names that `cuobjdump -elf` prints; what is relied on here was read
from what it prints. Whatever was not seen there makes the answer empty.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# ELF: 64 bits, little-endian; the CUDA part of it as `readelf` shows it and `cuobjdump -elf` names it.
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CUDA_MACHINE = 190
_ABIS = frozenset({(0x33, 7), (0x41, 8)})
"""OS ABI and its version, of CUDA 12 and 13."""
_ENTRY = 0x10  # STO_CUDA_ENTRY: a kernel

# Attributes of .nv.info: format, attribute, two bytes of value, or of the length of a longer one.
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # EIFMT_SVAL
_FORMATS = frozenset({1, 2, 3, _SIZED})
_REGISTER_COUNT = 0x2F  # the symbol's number and the registers of a thread
_PAIR = struct.Struct("<II")


def registers(image: bytes) -> dict[str, int]:
    """Returns the registers of a thread of each kernel of a cubin, by mangled names, as `ptxas -v` does.

    There are none where the image is something else, or damaged.
    """
    try:
        cubin = _Cubin.of(image)
        if cubin is None:
            return {}
        pairs = [
            _PAIR.unpack(content)
            for section in cubin.sections
            if section.name == ".nv.info"
            for attribute, content in _attributes(cubin.content(section))
            if attribute == _REGISTER_COUNT
        ]
        named = ((cubin.symbols[number], count) for number, count in pairs)
        return {symbol.name: count for symbol, count in named if symbol.is_kernel}
    except (struct.error, ValueError, IndexError):
        return {}


def launches_from_device(image: bytes) -> bool:
    """Returns whether a module has kernels that launch others, or graphs, by CUDA's device runtime.

    Told by the functions of that runtime that were linked into it: `cudaLaunchDevice` in its versions
    (`__cudaCDP2LaunchDeviceV2` of CUDA 12 and 13) and `cudaGraphLaunch`.

    Args:
        image: of the module as it was loaded, a cubin. Of anything else, or of a damaged one, no.
    """
    try:
        cubin = _Cubin.of(image)
    except (struct.error, ValueError, IndexError):
        return False
    return cubin is not None and any(
        symbol.name.startswith(_DEVICE_LAUNCHES) or symbol.name == "cudaGraphLaunch"
        for symbol in cubin.symbols
    )


_DEVICE_LAUNCHES = ("cudaLaunchDevice", "__cudaCDP2LaunchDevice")
_CODE = (".text.", ".nv.constant", ".nv.global.init")
"""Beginnings of the names of sections that hold what is executed, and what it finds in memory."""


def code_sha256(image: bytes) -> str | None:
    """Returns a hash of what a cubin executes: instructions, constants, initial values, in file order.

    Names are left out: Numba numbers the functions of a process, so that the same kernel has several. None
    where the image is something else, or damaged.
    """
    try:
        cubin = _Cubin.of(image)
        if cubin is None:
            return None
        digest = hashlib.sha256()
        for section in cubin.sections:
            kind = next((each for each in _CODE if section.name.startswith(each)), None)
            if kind is not None:
                content = cubin.content(section)
                digest.update(f"{kind} {len(content)}:".encode())
                digest.update(content)
        return digest.hexdigest()
    except (struct.error, ValueError, IndexError):
        return None


class _Section(NamedTuple):
    name: str
    start: int
    size: int
    link: int


class _Symbol(NamedTuple):
    name: str
    is_kernel: bool


@dataclass(frozen=True)
class _Cubin:
    """The sections of a cubin and its symbols, in the order of the file, by which they are referred to."""

    image: bytes
    sections: tuple[_Section, ...]
    symbols: tuple[_Symbol, ...]

    @classmethod
    def of(cls, image: bytes) -> _Cubin | None:
        """None where it is no cubin, or of a form that was never seen; a damaged one is an error."""
        if len(image) < _HEADER.size:
            return None
        fields = _HEADER.unpack_from(image)
        (magic, bits, order, _, os_abi, abi, _, machine), table = fields[:8], fields[11]
        entry_size, count, names = fields[16:]
        if (magic, bits, order, machine) != (b"\x7fELF", 2, 1, _CUDA_MACHINE) or (os_abi, abi) not in _ABIS:
            return None
        if entry_size != _SECTION.size:
            return None
        raw = list(_SECTION.iter_unpack(_part(image, table, count * entry_size)))
        texts = _part(image, raw[names][4], raw[names][5])
        sections = tuple(
            _Section(_text(texts, name), start, size, link)
            for name, _, _, _, start, size, link, _, _, _ in raw
        )
        return cls(image, sections, _symbols(image, sections))

    def content(self, section: _Section) -> bytes:
        return _part(self.image, section.start, section.size)


def _symbols(image: bytes, sections: tuple[_Section, ...]) -> tuple[_Symbol, ...]:
    table = next((section for section in sections if section.name == ".symtab"), None)
    if table is None:
        return ()
    names = sections[table.link]
    texts = _part(image, names.start, names.size)
    return tuple(
        _Symbol(_text(texts, name), bool(other & _ENTRY))
        for name, _, other, _, _, _ in _SYMBOL.iter_unpack(_part(image, table.start, table.size))
    )


def _part(image: bytes, start: int, size: int) -> bytes:
    if start + size > len(image):
        raise ValueError("a part that reaches beyond the end")
    return image[start : start + size]


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _attributes(facts: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields attributes with their contents; ValueError where one is of a format that was never seen."""
    at = 0
    while at < len(facts):
        form, attribute, value = _ATTRIBUTE.unpack_from(facts, at)
        if form not in _FORMATS:
            raise ValueError("an attribute of unknown length")
        at += _ATTRIBUTE.size
        content = b""
        if form == _SIZED:
            content = _part(facts, at, value)
            at += value
        yield attribute, content
