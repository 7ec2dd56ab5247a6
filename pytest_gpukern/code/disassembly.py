"""Reads the facts about a compiled kernel from what NVIDIA's `cuobjdump` and `nvdisasm` print about it.

`cuobjdump -res-usage` tells registers, frame and shared memory. `nvdisasm -json -annotate` (from 13.4.92 on)
lists instructions, and marks those that spill a register or fill it again. Nothing is decoded here.

The marked instructions store and load as many bytes as `ptxas -v` reports for a kernel: ptxas 12.9.86,
13.0.88 and 13.5.37, sm_80, sm_90 and sm_120, also after separate compilation and link-time optimization. What
a device function saves of its caller's registers is not marked, though ptxas counts it.

Other forms are hardly faster. 0.5 to 44 KB of code took nvdisasm 13.5.37, in the best of five runs on two
cores: 0.33–0.43 s with `-json -annotate`, 0.31–0.41 s with `-c`, 0.21–0.24 s with `-c -hex -ndf`. It took
`cuobjdump` 0.30 s with `-sass` and 2 ms with `-res-usage`. Start-up is most of it, so `Store` keeps what was
read.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from pytest_gpukern.code.launches import Compiled, Dimensions
from pytest_gpukern.code.opcodes import PADDING, class_of
from pytest_gpukern.code.tools import DisassemblyError, Tool, tool
from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.kernel_facts import with_occupancy
from pytest_gpukern.values import atomic_file
from pytest_gpukern.values.result import KernelFacts, Whole
from pytest_gpukern.values.untrusted_json import FileError


def facts(compiled: Compiled, kernel: str, architecture: str, grid: Dimensions, store: Store) -> KernelFacts:
    """Returns the facts about a kernel that was compiled for an architecture such as `sm_90` or `sm_90a`.

    Instructions, their size and spills are those of the entry and of the functions in the module that it
    names, directly or by others. A function that is called by a pointer is none of them, unless the compiler
    put it into the entry's own code.

    - registers: as ptxas counts them, also those of what it calls.
    - stack_bytes: the deepest frame, with what it calls; None for a recursive kernel.
    - local_bytes: the same, which a launch gets; of a recursive kernel only what is spilled.
    - shared_bytes: static and dynamic, without the KiB that the driver reserves from sm_90 on.
    - code_bytes: without padding.
    - machine_code_sha256: `code:…` of the whole module, as it is taken from a GPU.
    - occupancy: None if the limits of the architecture are not known.

    Raises:
        ToolsMissing: a tool is not installed.
        DisassemblyError: a tool refuses the cubin, or its output is not understood.
    """
    code = cubin.code_sha256(compiled.image)
    if code is None:
        raise DisassemblyError(f"what {kernel} compiled to for {architecture} is no cubin of CUDA 12 or 13")
    reader, disassembler = tool("cuobjdump"), tool("nvdisasm")
    with _written(compiled.image) as path:
        usages = _usages(reader, reader.output("-res-usage", path))
        usage = usages.get(compiled.entry) or reader.not_understood(f"no function {compiled.entry}")
        # No name is in the key: Numba numbers the functions of a process, so one kernel has several.
        place = list(usages).index(compiled.entry)
        listing = store.listing(
            f"{_FORM} {code} {place} {tuple(usage)} {architecture} {disassembler.version}",
            lambda: _listing(disassembler, path, compiled.entry),
        )
    local = usage.local + (listing.spill_bytes if usage.stack is None else usage.stack)
    known = KernelFacts(
        name=kernel,
        symbol=compiled.entry,
        registers=usage.registers,
        local_bytes=local,
        # Functions that are not in use at once share a place for what they spill.
        spill_bytes=min(listing.spill_bytes, local),
        stack_bytes=usage.stack,
        shared_bytes=_static_shared(reader, usage, compiled.image) + compiled.shared_bytes,
        code_bytes=listing.code_bytes,
        machine_code_sha256=f"code:{code}",
        instructions=tuple(listing.instructions.items()),
        grid=grid,
        block=compiled.block,
    )
    version = re.fullmatch(r"sm_(\d+)(\d)[af]?", architecture)
    return with_occupancy(known, (int(version[1]), int(version[2])) if version else None)


@contextlib.contextmanager
def _written(image: bytes) -> Iterator[str]:
    """Puts a cubin into a file, which the tools want. If this process is killed, a later one removes it."""
    with atomic_file.TemporaryFolder("code") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(image)
        yield str(path)


class _Usage(NamedTuple):
    registers: int
    stack: int | None
    """None where recursion makes it unknown."""
    shared: int
    local: int


_USAGE = re.compile(
    r"^ *Function (\S+):\s*\n *REG:(\d+) STACK:(\d+|UNKNOWN) SHARED:(\d+) LOCAL:(\d+)(?= |$)", re.MULTILINE
)
_RESERVES = b".nv.reservedSmem."
"""Beginning of the names of symbols in a module for which a part of the shared memory is the driver's."""
_RESERVED_BYTES = 1024


def _usages(reader: Tool, printed: str) -> dict[str, _Usage]:
    """Returns mangled name → what `cuobjdump -res-usage` says, in the order of the module."""
    usages = {
        name: _Usage(int(registers), None if stack == "UNKNOWN" else int(stack), int(shared), int(local))
        for name, registers, stack, shared, local in _USAGE.findall(printed)
    }
    if len(usages) != len(re.findall(r"^ *Function ", printed, re.MULTILINE)) or not usages:
        reader.not_understood(printed)
    return usages


def _static_shared(reader: Tool, usage: _Usage, image: bytes) -> int:
    """Returns static shared memory as CUPTI and ptxas tell it, without what the driver reserves.

    `-res-usage` adds that to some kernels from sm_90 on: 512 bytes are 1536, and none are 0 or 1024.
    """
    if usage.shared == 0 or _RESERVES not in image:
        return usage.shared
    if usage.shared < _RESERVED_BYTES:
        reader.not_understood(f"SHARED:{usage.shared}, and {_RESERVED_BYTES} bytes of it are reserved")
    return usage.shared - _RESERVED_BYTES


class _Annotation(Struct):
    info: str


class _Instruction(Struct):
    opcode: str
    operands: str = ""
    annotations: list[_Annotation] = []

    @property
    def is_spill(self) -> bool:
        return any("spill" in annotation.info.lower() for annotation in self.annotations)


class _Function(Struct):
    name: str = field(name="function-name")
    length: int
    instructions: list[_Instruction] = field(name="sass-instructions")


class Listing(Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what the disassembly of a kernel came to; `KernelFacts` says what the fields mean."""

    spill_bytes: Whole
    code_bytes: Whole
    instructions: dict[str, Whole]


_INSTRUCTION_BYTES = 16  # from compute capability 7.0 on
_OPCODE = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Za-z0-9_]+)*")
_NAME = re.compile(r"[\w$.]+")
_PLACE = re.compile(r"\[([^\]]*?)\+?(-?0x[0-9a-f]+)?\]")
_BITS = re.compile(r"\.[US]?(8|16|32|64|128|256)\b")


def _listing(disassembler: Tool, path: str, entry: str) -> Listing:
    printed = disassembler.output("-json", "-annotate", path)
    try:
        _, listed = msgspec.json.decode(printed, type=tuple[dict[str, Any], list[_Function]])
    except (msgspec.MsgspecError, ValueError) as error:
        disassembler.not_understood(f"{error}: {printed[:100]}")
    functions = {function.name: function for function in listed}
    if entry not in functions:
        disassembler.not_understood(f"no function {entry}")
    reached = [functions[name] for name in _reached(functions, entry)]
    for function in reached:
        count = len(function.instructions)
        if count == 0 or function.length != _INSTRUCTION_BYTES * count:
            disassembler.not_understood(f"{count} instructions in {function.length} bytes of {function.name}")
        for each in function.instructions:
            if not _OPCODE.fullmatch(each.opcode):
                disassembler.not_understood(f"the instruction {each.opcode} in {function.name}")
    classes = Counter(class_of(each.opcode, each.operands) for part in reached for each in part.instructions)
    del classes[PADDING]
    return Listing(
        spill_bytes=sum(_spilled(disassembler, function) for function in reached),
        code_bytes=_INSTRUCTION_BYTES * classes.total(),
        instructions=dict(sorted(classes.items())),
    )


def _reached(functions: Mapping[str, _Function], entry: str) -> set[str]:
    """Returns the entry and all that operands of what is reached name, such as those of CALL and MOV."""
    reached: set[str] = set()
    waiting = {entry}
    while waiting:
        reached |= waiting
        operands = {each.operands for name in waiting for each in functions[name].instructions}
        waiting = (set(_NAME.findall(" ".join(operands))) & functions.keys()) - reached
    return reached


def _spilled(disassembler: Tool, function: _Function) -> int:
    """Returns the size of the places in local memory to which marked instructions store registers."""
    places: set[tuple[str, int]] = set()
    for each in function.instructions:
        if each.opcode.split(".")[0] == "STL" and each.is_spill:
            address, bits = _PLACE.search(each.operands), _BITS.search(each.opcode)
            if address is None:
                disassembler.not_understood(f"{each.opcode} {each.operands}")
            start = int(address[2] or "0", 16)
            places |= {(address[1], start + i) for i in range(int(bits[1] if bits else "32") // 8)}
    return len(places)


_FORM = 1
"""Version of what the store keeps and of the classes: what another one wrote is never asked for."""


class Store:
    """Keeps listings in a folder by what was disassembled and by which version of the tool.

    Processes may share it. A damaged entry is made again; one that cannot be written is not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listing(self, key: str, make: Callable[[], Listing]) -> Listing:
        path = self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            checksum, _, content = path.read_bytes().partition(b"\n")
            if checksum == hashlib.sha256(content).hexdigest().encode():
                return msgspec.json.decode(content, type=Listing)
        listing = make()
        content = msgspec.json.encode(listing)
        with contextlib.suppress(OSError, FileError):
            self._folder.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        return listing
