"""What a cubin tells of its kernels: registers, spills, and a hash of what is executed. Bytes in, values out.

A spill is stored and loaded by the same instructions, off the same stack pointer, as an array whose places
are constants, so that instructions alone do not tell them apart. The assembler does: since CUDA 12.6, ptxas
lists the offset of each instruction that it added to spill, which `nvdisasm` prints as `SpillRefill`. How
many bytes such an instruction moves is read from the instruction.

NVIDIA documents none of this beyond the names that `cuobjdump -elf` and `nvdisasm` print. What is relied on
here was read from what these print, and held against the lines of `ptxas -v`; `tests/unit/data/README.md`
says how. Whatever was not seen there makes the answer None.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHITECTURES = frozenset({70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121})
"""Those (sm_70 and so on) of which the instructions were compared with what ptxas says."""

FIRST_TOOLKIT, BEFORE_TOOLKIT = 126, 140
"""CUDA 12.6 is the first seen to list spills, 13.5 the newest; another major version may do otherwise."""

# ELF: 64 bits, little-endian; the CUDA part of it as `readelf` shows it and `cuobjdump -elf` names it.
_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CUDA_MACHINE = 190
_WHERE_SM_IS = {(0x33, 7): 0, (0x41, 8): 8}
"""OS ABI and its version → from which bit of the header's flags the architecture is: CUDA 12 and 13."""
_FUNCTION = 2  # type of a symbol
_ENTRY = 0x10  # STO_CUDA_ENTRY: a kernel
_UNDEFINED = 0  # section of a symbol that the driver supplies, such as vprintf

# Attributes of .nv.info.<kernel>: format, attribute, two bytes of value, or of the length of a longer one.
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # EIFMT_SVAL
_FORMATS = frozenset({1, 2, 3, _SIZED})
_REGISTER_COUNT = 0x2F  # in .nv.info: the symbol's number and the registers of a thread
_CUDA_API_VERSION = 0x37  # 135 of CUDA 13.5, whatever the PTX asked for
_ANNOTATIONS = 0x55
_PAIR = struct.Struct("<II")
_SPILL_REFILL = 1
_LONGEST_LIST = (1 << 16) // _PAIR.size
"""The length of a list has 16 bits; of one with so many entries or more, ptxas writes the first few only."""

# .nv.callgraph: pairs of symbols under headings (0, -1 … -4).
_CALL = struct.Struct("<ii")
_DIRECT, _POINTED_TO, _INDIRECT, _RESOLVED = -1, -2, -3, -4

# Instructions of 128 bits: the operation in the low 12, the width of an access in bits 73 to 75.
_INSTRUCTION = struct.Struct("<QQ")
_STL, _LDL, _STS, _LDS = 0x387, 0x983, 0x388, 0x984
_WIDTHS = (1, 1, 2, 2, 4, 8, 16)


class Spills(NamedTuple):
    """What a kernel spills to local memory: bytes of its instructions, however often they run.

    Attributes:
        store_bytes: of a thread, stored by spills: what `ptxas -v` prints as "bytes spill stores".
        load_bytes: of a thread, loaded again: "bytes spill loads".
    """

    store_bytes: int
    load_bytes: int


def spills(image: bytes) -> dict[str, Spills | None]:
    """Returns what the kernels of a module spill, by their mangled names.

    It is None where it cannot be told: compiled by CUDA before 12.6 or after 13, for an architecture that is
    none of `ARCHITECTURES`, spilling with 8192 instructions or more, or calling functions that use local
    memory themselves, that lie elsewhere, or that only the running program knows. What the driver supplies,
    such as printf, does not count. Nor do spills to shared memory, which a kernel has to ask for.

    Args:
        image: of the module as it was loaded, a cubin. Of anything else (a fatbinary, PTX), or of a damaged
            one, nothing is known.
    """
    try:
        cubin = _Cubin.of(image)
        return {} if cubin is None else dict(_of_kernels(cubin))
    except (struct.error, ValueError, IndexError):
        return {}


def registers(image: bytes) -> dict[str, int]:
    """Registers that a thread of each kernel of a module takes, by their mangled names.

    As `ptxas -v` prints them. A launch is recorded with 16 where they are fewer (H200, CUDA 13.0).

    Args:
        image: of the module as it was loaded, a cubin. Of anything else, or of a damaged one, there are none.
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


_CODE = (".text.", ".nv.constant", ".nv.global.init")
"""Beginnings of the names of sections that hold what is executed, and what it finds in memory."""


def code_sha256(image: bytes) -> str | None:
    """Returns a hash of what a module executes: instructions, constants, initial values, in file order.

    Not of names: Numba numbers the functions of a process, so that the same kernel has another mangled name
    wherever another function was compiled before it. Nor of what tells of sources, tools and options.

    Args:
        image: of the module as it was loaded, a cubin. Of anything else, or of a damaged one, there is none.
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
    info: int


class _Symbol(NamedTuple):
    name: str
    section: int
    start: int
    end: int
    is_function: bool
    is_kernel: bool


@dataclass(frozen=True)
class _Cubin:
    """The sections of a cubin and its symbols, in the order of the file, by which they are referred to."""

    image: bytes
    sections: tuple[_Section, ...]
    symbols: tuple[_Symbol, ...]
    sm: int

    @classmethod
    def of(cls, image: bytes) -> _Cubin | None:
        """None where it is no cubin, or of a form that was never seen; a damaged one is an error."""
        if len(image) < _HEADER.size:
            return None
        fields = _HEADER.unpack_from(image)
        (magic, bits, order, _, os_abi, abi, _, machine), (table, flags) = fields[:8], fields[11:13]
        entry_size, count, names = fields[16:]
        sm_bit = _WHERE_SM_IS.get((os_abi, abi))
        if (magic, bits, order, machine) != (b"\x7fELF", 2, 1, _CUDA_MACHINE) or sm_bit is None:
            return None
        if entry_size != _SECTION.size:
            return None
        raw = list(_SECTION.iter_unpack(_part(image, table, count * entry_size)))
        texts = _part(image, raw[names][4], raw[names][5])
        sections = tuple(
            _Section(_text(texts, name), start, size, link, info)
            for name, _, _, _, start, size, link, info, _, _ in raw
        )
        return cls(image, sections, _symbols(image, sections), flags >> sm_bit & 0xFF)

    def content(self, section: _Section) -> bytes:
        return _part(self.image, section.start, section.size)


def _symbols(image: bytes, sections: tuple[_Section, ...]) -> tuple[_Symbol, ...]:
    table = next((section for section in sections if section.name == ".symtab"), None)
    if table is None:
        return ()
    names = sections[table.link]
    texts = _part(image, names.start, names.size)
    return tuple(
        _Symbol(_text(texts, name), home, start, start + size, kind & 0xF == _FUNCTION, bool(other & _ENTRY))
        for name, kind, other, home, start, size in _SYMBOL.iter_unpack(_part(image, table.start, table.size))
    )


def _part(image: bytes, start: int, size: int) -> bytes:
    if start + size > len(image):
        raise ValueError("a part that reaches beyond the end")
    return image[start : start + size]


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _of_kernels(cubin: _Cubin) -> Iterator[tuple[str, Spills | None]]:
    facts = {section.info: section for section in cubin.sections if section.name.startswith(".nv.info.")}
    functions: dict[int, list[_Symbol]] = {}
    for symbol in cubin.symbols:
        if symbol.is_function:
            functions.setdefault(symbol.section, []).append(symbol)
    elsewhere = _calling_elsewhere(cubin)
    for number, symbol in enumerate(cubin.symbols):
        if not (symbol.is_function and symbol.is_kernel):
            continue
        known = cubin.sm in ARCHITECTURES and elsewhere is not None and number not in elsewhere
        if not known or symbol.section not in facts:
            yield symbol.name, None
            continue
        inner = [other for other in functions[symbol.section] if other is not symbol]
        try:
            code = cubin.content(cubin.sections[symbol.section])
            yield symbol.name, _of_kernel(cubin.content(facts[symbol.section]), code, symbol, inner)
        except (struct.error, ValueError, IndexError):
            yield symbol.name, None


def _of_kernel(facts: bytes, code: bytes, kernel: _Symbol, inner: list[_Symbol]) -> Spills | None:
    """Returns what a kernel spills, from its attributes and the code of its section.

    Args:
        facts: content of its section of attributes.
        code: content of its section of code.
        kernel: its symbol; it spans what ptxas put behind it, too.
        inner: symbols of the functions that ptxas put behind it: divisions, and copies of what it calls. The
            registers that they save for their caller are in no list, but are spills to `ptxas -v`.
    """
    toolkit, offsets = _toolkit_and_spills(facts)
    if toolkit is None or not FIRST_TOOLKIT <= toolkit < BEFORE_TOOLKIT or offsets is None:
        return None
    if not kernel.start < kernel.end <= len(code):
        return None
    for function in inner:
        # The next kernel of a section, which was never seen, would be no part of this one.
        if function.is_kernel or not kernel.start <= function.start < function.end <= kernel.end:
            return None
        within = _part(code, function.start, function.end - function.start)
        if any(low & 0xFFF in (_STL, _LDL) for low, _ in _INSTRUCTION.iter_unpack(within)):
            return None
    return _moved(code, offsets)


def _toolkit_and_spills(facts: bytes) -> tuple[int | None, list[int] | None]:
    """The toolkit that compiled a kernel, and where its spills are; None where they cannot be told."""
    toolkit, offsets = None, list[int]()
    for attribute, content in _attributes(facts):
        if attribute == _CUDA_API_VERSION:
            (toolkit,) = struct.unpack("<I", content)
        elif attribute == _ANNOTATIONS:
            pairs = list(_PAIR.iter_unpack(content))
            if any(kind != _SPILL_REFILL for kind, _ in pairs):
                return toolkit, None  # of another length, for all that is known
            offsets += [offset for _, offset in pairs]
    return toolkit, offsets


def _attributes(facts: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes with their contents, which are empty where two bytes hold the value.

    Raises:
        ValueError: one is of a format that was never seen.
    """
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


def _moved(code: bytes, offsets: list[int]) -> Spills | None:
    """Returns the bytes that the instructions at these offsets store to local memory and load from it.

    None where one of them does neither, or where there may be more than could be listed.
    """
    moved = {_STL: 0, _LDL: 0, _STS: 0, _LDS: 0}
    for offset in set(offsets):
        low, high = _INSTRUCTION.unpack_from(code, offset)
        operation, width = low & 0xFFF, high >> 9 & 7
        if offset % _INSTRUCTION.size or operation not in moved or width >= len(_WIDTHS):
            return None
        moved[operation] += _WIDTHS[width]
    if len(code) >= _LONGEST_LIST * _INSTRUCTION.size:
        accesses = sum(low & 0xFFF in moved for low, _ in _INSTRUCTION.iter_unpack(code))
        if accesses - len(set(offsets)) >= _LONGEST_LIST:
            return None  # so many that are not listed may be the rest of the list
    return Spills(moved[_STL], moved[_LDL])


def _calling_elsewhere(cubin: _Cubin) -> set[int] | None:
    """Numbers of the symbols that call what lies in another section, or what is not known before they run.

    None where there is no list of calls.
    """
    section = next((each for each in cubin.sections if each.name == ".nv.callgraph"), None)
    if section is None:
        return None
    heading, found = 0, set()
    for caller, called in _CALL.iter_unpack(cubin.content(section)):
        if caller == 0 and called < 0:
            heading = called
        elif heading == _INDIRECT or (
            heading in (_DIRECT, _RESOLVED) and cubin.symbols[called].section != _UNDEFINED
        ):
            found.add(caller)
        elif heading not in (_DIRECT, _POINTED_TO, _RESOLVED):
            return None  # the callers under a heading that was never seen may be any
    return found
