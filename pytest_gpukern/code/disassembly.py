"""Reads the facts about a compiled kernel from what NVIDIA's `cuobjdump` and `nvdisasm` print about it.

`cuobjdump -res-usage` tells registers, frame and shared memory. `nvdisasm -json -annotate` (from 13.4.92 on)
lists instructions, and marks those that spill a register or fill it again. Nothing is decoded here.

The marked instructions store and load as many bytes as `ptxas -v` reports for a kernel: ptxas 12.9.86,
13.0.88 and 13.5.37, sm_80, sm_90 and sm_120, also after separate compilation and link-time optimization. What
a device function saves of its caller's registers is not marked, though ptxas counts it.

Most of the 0.3 s that `nvdisasm` takes for a kernel is its start-up, so what was read is kept in memory.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec import Struct, field, structs

from pytest_gpukern.code.launches import Compiled, Dimensions, capability
from pytest_gpukern.gpu import cubin
from pytest_gpukern.gpu.kernel_facts import with_occupancy
from pytest_gpukern.gpu.programs import cuda_program
from pytest_gpukern.values import atomic_file
from pytest_gpukern.values.result import KernelFacts
from pytest_gpukern.values.untrusted_json import bounded, printable

_REMEDY = "pip install --upgrade 'pytest-gpukern[code]'"
_OLDEST = "13.4.92"  # of cuda-toolkit 13.4.2: 13.4.49, of 13.4.1, says "Unknown option 'annotate'"


class DisassemblyError(Exception):
    """Says in one line why the facts about a kernel cannot be read."""


class BinaryTool(NamedTuple):
    """Runs `cuobjdump` or `nvdisasm`."""

    path: str
    version: str  # as it prints it, such as `13.5.37`

    def output(self, *arguments: str) -> str:
        """Returns what it prints; raises DisassemblyError with its own message if it refuses."""
        try:
            done = subprocess.run([self.path, *arguments], capture_output=True, timeout=120, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            message = (getattr(error, "stderr", None) or str(error).encode()).decode(errors="replace").strip()
            options = " ".join(argument for argument in arguments if argument.startswith("-"))
            raise self._error(f"fails with {options}: {message}") from error
        return done.stdout.decode(errors="replace")

    def not_understood(self, printed: str) -> NoReturn:
        """Raises DisassemblyError about an output of another form than those that were tried."""
        raise self._error(f"printed what we do not understand: {printed.strip()}")

    def _error(self, problem: str) -> DisassemblyError:
        text = bounded(printable(" ".join(problem.split())), 400)
        remedy = f"{Path(self.path).name} 13.5.37 was tried: {_REMEDY}"
        return DisassemblyError(f"{self.path} ({self.version}) {text}. {remedy}")


@functools.cache
def tool(name: str) -> BinaryTool:
    """Returns `cuobjdump` or `nvdisasm`; raises DisassemblyError if it is missing, or tells no version."""
    path = cuda_program(name)
    if path is None:
        places = "NVIDIA's wheels, CUDA_HOME, CUDA_PATH or PATH"
        raise DisassemblyError(f"{name} is not in {places}; kernels are read by it: {_REMEDY}")
    unnamed = BinaryTool(path, "version unknown")
    printed = unnamed.output("--version")
    version = re.search(r"\bV(\d+\.\d+\.\d+)\b", printed)
    return unnamed._replace(version=version[1]) if version else unnamed.not_understood(printed)


def require_tools() -> None:
    """Raises `DisassemblyError` where a tool is missing, or is older than `nvdisasm -annotate`."""
    from packaging.version import Version

    for path, version in map(tool, ("cuobjdump", "nvdisasm")):
        if Version(version) < Version(_OLDEST):
            raise DisassemblyError(f"{path} is of version {version}, and {_OLDEST} is needed: {_REMEDY}")


def facts(compiled: Compiled, kernel: str, architecture: str, grid: Dimensions) -> KernelFacts:
    """Returns the facts about a kernel that was compiled for an architecture such as `sm_90`.

    Instructions, their size without padding and spills are counted in the entry, and in the functions of the
    module that it names, directly or by others. A function that is called by a pointer is not counted, unless
    the compiler put it into the entry's own code. Of a recursive kernel `stack_bytes` is None, and
    `local_bytes` only what is spilled. `shared_bytes` is without the KiB that the driver reserves from sm_90
    on. There is no occupancy if the limits of the architecture are not known.

    Raises DisassemblyError if a tool is missing, refuses the cubin or prints what is not understood.
    """
    code = cubin.code_sha256(compiled.image)
    if code is None:
        raise DisassemblyError(f"what {kernel} compiled to for {architecture} is no cubin of CUDA 12 or 13")
    known = _read(compiled.image, compiled.entry)
    shared_bytes = known.shared_bytes + compiled.shared_bytes
    known = structs.replace(known, name=kernel, symbol=compiled.entry, machine_code_sha256=f"code:{code}")
    known = structs.replace(known, shared_bytes=shared_bytes, grid=grid, block=compiled.block)
    return with_occupancy(known, capability(architecture))


@functools.cache
def _read(image: bytes, entry: str) -> KernelFacts:
    """Returns what the tools tell of a kernel in a cubin."""
    reader = tool("cuobjdump")
    # If this process is killed, a later one removes the folder.
    with atomic_file.TemporaryFolder("code") as folder:
        path = f"{folder}/kernel.cubin"
        Path(path).write_bytes(image)
        usages = _usages(reader, reader.output("-res-usage", path))
        usage = usages.get(entry) or reader.not_understood(f"no function {entry}")
        known = _disassembled(tool("nvdisasm"), path, usage)
    return structs.replace(known, shared_bytes=_static_shared(reader, usage.shared_bytes, image))


_USAGE = re.compile(
    r"^ *Function (\S+):\s*\n *REG:(\d+) STACK:(\d+|UNKNOWN) SHARED:(\d+) LOCAL:(\d+)(?= |$)", re.MULTILINE
)


def _usages(reader: BinaryTool, printed: str) -> dict[str, KernelFacts]:
    """Returns mangled name → what `cuobjdump -res-usage` says, in the order of the module."""
    usages = {}
    for name, registers, stack, shared, local in _USAGE.findall(printed):
        stack_bytes = None if stack == "UNKNOWN" else int(stack)  # recursion makes it unknown
        usages[name] = KernelFacts(name, int(registers), int(local), int(shared), stack_bytes=stack_bytes)
    if len(usages) != len(re.findall(r"^ *Function ", printed, re.MULTILINE)) or not usages:
        reader.not_understood(printed)
    return usages


def _static_shared(reader: BinaryTool, shared_bytes: int, image: bytes) -> int:
    """Returns static shared memory as CUPTI and ptxas tell it, without what the driver reserves.

    `-res-usage` adds that to some kernels from sm_90 on: 512 bytes are 1536, and none are 0 or 1024.
    """
    reserved_bytes = 1024 if shared_bytes and b".nv.reservedSmem." in image else 0  # a symbol's name
    if shared_bytes < reserved_bytes:
        reader.not_understood(f"SHARED:{shared_bytes}, and {reserved_bytes} bytes of it are reserved")
    return shared_bytes - reserved_bytes


class _Annotation(Struct):
    info: str


class _Instruction(Struct):
    opcode: str
    operands: str = ""
    annotations: list[_Annotation] = []


class _Function(Struct):
    name: str = field(name="function-name")
    length: int
    instructions: list[_Instruction] = field(name="sass-instructions")


_INSTRUCTION_BYTES = 16  # from compute capability 7.0 on
_OPCODE = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Za-z0-9_]+)*")
_NAME = re.compile(r"[\w$.]+")
_PLACE = re.compile(r"\[([^\]]*?)\+?(-?0x[0-9a-f]+)?\]")
_BITS = re.compile(r"\.[US]?(8|16|32|64|128|256)\b")


def _disassembled(disassembler: BinaryTool, path: str, usage: KernelFacts) -> KernelFacts:
    """Adds what the instructions of a kernel tell to what is known of it."""
    printed = disassembler.output("-json", "-annotate", path)
    try:
        _, listed = msgspec.json.decode(printed, type=tuple[dict[str, Any], list[_Function]])
    except (msgspec.MsgspecError, ValueError) as error:
        disassembler.not_understood(f"{error}: {printed[:100]}")
    functions = {function.name: function for function in listed}
    if usage.name not in functions:
        disassembler.not_understood(f"no function {usage.name}")
    reached = [functions[name] for name in _reached(functions, usage.name)]
    for function in reached:
        count = len(function.instructions)
        if count == 0 or function.length != _INSTRUCTION_BYTES * count:
            disassembler.not_understood(f"{count} instructions in {function.length} bytes of {function.name}")
        for each in function.instructions:
            if not _OPCODE.fullmatch(each.opcode):
                disassembler.not_understood(f"the instruction {each.opcode} in {function.name}")
    classes = Counter(class_of(each.opcode, each.operands) for part in reached for each in part.instructions)
    del classes[_PADDING]
    spill_bytes = sum(_spilled(disassembler, function) for function in reached)
    local_bytes = usage.local_bytes + (spill_bytes if usage.stack_bytes is None else usage.stack_bytes)
    return structs.replace(
        usage,
        local_bytes=local_bytes,
        # Functions that are not in use at once share a place for what they spill.
        spill_bytes=min(spill_bytes, local_bytes),
        code_bytes=_INSTRUCTION_BYTES * classes.total(),
        instructions=tuple(sorted(classes.items())),
    )


def _reached(functions: Mapping[str, _Function], entry: str) -> set[str]:
    """Returns the entry, and each function that an operand in one of them names, as in CALL and MOV."""
    reached, waiting = set[str](), {entry}
    while waiting:
        reached |= waiting
        operands = {each.operands for name in waiting for each in functions[name].instructions}
        waiting = (set(_NAME.findall(" ".join(operands))) & functions.keys()) - reached
    return reached


def _spilled(disassembler: BinaryTool, function: _Function) -> int:
    """Returns the size of the places in local memory to which marked instructions store registers."""
    places: set[tuple[str, int]] = set()
    for each in function.instructions:
        marked = any("spill" in annotation.info.lower() for annotation in each.annotations)
        if marked and each.opcode.split(".")[0] == "STL":
            address, bits = _PLACE.search(each.operands), _BITS.search(each.opcode)
            if address is None:
                disassembler.not_understood(f"{each.opcode} {each.operands}")
            start = int(address[2] or "0", 16)
            places |= {(address[1], start + i) for i in range(int(bits[1] if bits else "32") // 8)}
    return len(places)


_PADDING, _OTHER = "padding", "other"
_TABLES = {
    "fp64": "DADD DFMA DMMA DMNMX DMUL DSET DSETP",
    "fp32": "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3 FMUL FMUL2 FMUL32I FSEL FSET"
    " FSETP FSWZADD",
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2",
    "integer": "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD ISCADD32I"
    " ISETP LEA LOP LOP3 LOP32I POPC SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3",
    "tensor": "BGMMA BMMA HGMMA HMMA IGMMA IMMA OMMA QGMMA QMMA LDT LDTM STT STTM",
    "special": "MUFU",
    "conversion": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP",
    "global": "LD LDG LDGMC LDGSTS ST STG SULD SUST TEX TLD TLD4 TXD UBLKCP UBLKPF UTMALDG UTMAPF UTMASTG",
    "shared": "LDS LDSM STAS STS STSM",
    "local": "LDL STL",
    "atomic": "ATOM ATOMG ATOMS RED REDAS REDG SUATOM SURED UBLKRED UTMAREDG",
    "barrier": "ACQBULK ARRIVES BAR CGAERRBAR DEPBAR ERRBAR FENCE LDGDEPBAR MEMBAR SYNCS UCGABAR_ARV"
    " UCGABAR_WAIT UTCBAR UTMACMDFLUSH WARPGROUP WARPSYNC",
    "control": "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL ELECT ENDCOLLECTIVE EXIT JMP JMX JMXU KILL"
    " NANOSLEEP PREEXIT RET RPCMOV YIELD",
    _PADDING: "NOP",
}
"""Names and tables come from "Instruction Set Reference" in NVIDIA's "CUDA Binary Utilities" (Turing to
Blackwell). Five decisions are ours:

- An instruction is in one class. DMMA is `fp64`, since a double must show; MUFU.RCP64H and RSQ64H, by which a
  division or root of doubles begins, too. All other MUFU are `special`.
- F2F, I2F and their like stay where NVIDIA's tables have them, in `conversion`, also to and from doubles.
- An instruction of the uniform datapath (UIADD3) is in the class of what it does (IADD3).
- An address that may be in any memory (LD), textures, surfaces and bulk copies are `global`.
- Moves are `other`, with IMAD.MOV and HFMA2 of zeros, by which the compiler loads a constant into a register.
"""
_CLASSES = {name: kind for kind, names in _TABLES.items() for name in names.split()}
_SPECIAL = (
    (re.compile(r"MUFU\.(RCP|RSQ)64H\b"), "fp64"),
    (re.compile(r"UTC\w*MMA\b"), "tensor"),  # the fifth generation: UTCHMMA, UTCIMMA, UTCQMMA, UTCOMMA
    (re.compile(r"IMAD\.MOV\b|HFMA2\b\S* R\d+,-RZ,RZ,"), _OTHER),
)


def class_of(opcode: str, operands: str = "") -> str:
    """Returns the class of an instruction such as `FADD.FTZ R0,R1,R2`; `other` for an unknown opcode."""
    special = next((kind for words, kind in _SPECIAL if words.match(f"{opcode} {operands}")), None)
    name = opcode.partition(".")[0]
    return special or _CLASSES.get(name) or _CLASSES.get(name.removeprefix("U"), _OTHER)
