"""Computes the facts about a kernel: its readable name, its resources, its occupancy."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from msgspec import structs

from pytest_gpukern.gpu.theory import MULTIPROCESSORS
from pytest_gpukern.values.note import About, Note
from pytest_gpukern.values.result import DeviceWork, KernelFacts


def kernel_facts(
    work: Iterable[DeviceWork],
    compute_capability: tuple[int, int] | None,
    machine_code: Callable[[str, int], str | None] | None = None,
) -> tuple[KernelFacts, ...]:
    """Returns the facts of each kernel that a call launched, in order.

    There is no occupancy if the compute capability is None or unknown. `machine_code` maps a mangled name
    and its registers to a hash of the machine code, or None.
    """
    return tuple(
        structs.replace(
            with_occupancy(kernel, compute_capability),
            machine_code_sha256=machine_code(entry.name, kernel.registers) if machine_code else None,
        )
        for entry in work
        if (kernel := entry.kernel) is not None
    )


def autotuned(kernels: Iterable[KernelFacts]) -> dict[str, dict[str, str]]:
    """Returns kernel → the configuration by which Triton's or Helion's autotuner launched it last.

    Several tuners may have kernels of one name, as in two tests. Then those count whose number of warps fits
    the launch; if they differ, we do not know. A configuration that a Helion kernel is given is not tuned.
    """
    # A search takes 20 to 40 ms, and Triton mangles no names.
    plain = [kernel for kernel in kernels if not (kernel.symbol or "").startswith("_Z")]
    launched = {kernel.name: math.prod(kernel.block or ()) for kernel in plain}
    if not launched:
        return {}
    chosen = [
        (tuner.base_fn.__name__, configuration(config))
        for tuner in _living("triton.runtime.autotuner", "Autotuner")
        if (config := getattr(tuner, "best_config", None)) is not None
    ]
    for bound in _living("helion.runtime.kernel", "BoundKernel"):  # one of these for each kind of arguments
        if bound._config is not None and len(bound.kernel.configs) != 1:
            settings = {name: str(value) for name, value in bound._config.items()}
            chosen.append((f"_helion_{bound.kernel.name}", settings))  # it launches a kernel of Triton
    choices: dict[str, dict[str, str]] = {}
    for name, threads in launched.items():
        tuned = [settings for kernel, settings in chosen if kernel == name]
        fitting = [each for each in tuned if _WARP * int(each.get("num_warps", 0)) == threads] or tuned
        if fitting and all(other == fitting[0] for other in fitting):
            choices[name] = fitting[0]
    return choices


def configuration(config: Any) -> dict[str, str]:
    """Returns the parameters of a `triton.Config` and its launch options, as texts."""
    return {name: str(value) for name, value in config.all_kwargs().items() if value is not None}


def triton_cubins() -> dict[int, bytes]:
    """Returns the driver's handle → the cubin of each kernel that Triton has loaded and still holds.

    Triton loads a kernel as it is first launched. We look at no attribute that could load it.
    """
    kernels = map(vars, _living("triton.compiler.compiler", "CompiledKernel"))
    return {
        kernel["function"]: kernel["kernel"]
        for kernel in kernels
        if kernel.get("function") and kernel.get("kernel")
    }


def _living(module: str, kind: str) -> list[Any]:
    """Returns the objects of a class; none if its module was not imported."""
    wanted = getattr(sys.modules.get(module), kind, None)
    if wanted is None:
        return []
    objects = gc.get_referrers(wanted)  # an object refers to its class, and this search is in C
    if gc.get_freeze_count():  # what is frozen, as in a child session, is mostly in its module
        modules = [loaded for loaded in list(sys.modules.values()) if isinstance(loaded, ModuleType)]
        objects += itertools.chain.from_iterable(list(vars(loaded).values()) for loaded in modules)
    return list({id(thing): thing for thing in objects if type(thing) is wanted}.values())


def without_hash(kernels: Sequence[KernelFacts], refused: str | None) -> tuple[Note, ...]:
    """Returns a note on kernels without a hash of their code, or nothing; `refused` says why."""
    missing = [facts.name for facts in kernels if facts.machine_code_sha256 is None]
    if not missing:
        return ()
    more = len(missing) - 1
    others = f" and {more} more {'kernel' if more == 1 else 'kernels'}" if more else ""
    why = refused or "we did not see it loaded, or several kernels share its name"
    text = f"no hash of the machine code of {missing[0]}{others}: {why}"
    return (Note(text, About.MACHINE_CODE),)


_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
"""Libraries of the C++ run time that hold the demangler."""
_LONGEST_NAME = 8192  # CUTLASS names have a few thousand characters; a crafted one must not cost minutes
_NUMBA_TAG = re.compile(r"\[abi:v\d+[,\]]")  # demanglers write a bracket for each tag, debuggers one for all
_UNTAGGED = re.compile(r"_3c(locals|lambda)_3e|\bArray<.*, (mutable|readonly), aligned")  # of numba-cuda-mlir
_TAG = re.compile(r"\[abi:[^\]]*\]")
_NUMBERED_TYPE = re.compile(r"\bRecord<\d+>")  # Numba's name of a structure counts the types of the process
_VERSIONED_NAMESPACE = re.compile(r"\b[A-Z]+_\d\w*_NS::")
_NOISE = ("(anonymous namespace)::", ", mutable, aligned", ", aligned")
_ELLIPSIS = "…"


@functools.lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """Returns a kernel's name as its author would write it, unchanged if it cannot be demangled.

    Leaves out Numba's tags and enclosing functions, return types, versioned namespaces and layout details.
    """
    demangled = demangle(name)
    if demangled is None:
        return _of_numba(_TAG.sub("", name)) if _NUMBA_TAG.search(name) else name
    text = demangled.removeprefix("void ").replace("> >", ">>")
    for noise in _NOISE:
        text = text.replace(noise, "")
    text = _VERSIONED_NAMESPACE.sub("", text)
    if _NUMBA_TAG.search(text) or _UNTAGGED.search(demangled):
        return _of_numba(_TAG.sub("", text))
    return _TAG.sub("", text)


def fitted(text: str, width: int) -> str:
    """Shortens a readable name to `width` characters, if an ellipsis for its parameters and template
    arguments is enough for that."""
    if len(text) > width:
        text = _without_parameters(text)
    if len(text) > width:
        text = _without_template_arguments(text)
    return text


def demangle(name: str) -> str | None:
    """Returns a mangled name in C++; None if it is not mangled, or without a C++ run time.

    Uses `__cxa_demangle`: https://itanium-cxx-abi.github.io/cxx-abi/abi.html#demangler
    """
    if not name.startswith("_Z") or len(name) > _LONGEST_NAME:
        return None
    demangler = _demangler()
    return demangler(name) if demangler is not None else None


@functools.cache
def _demangler() -> Callable[[str], str | None] | None:
    for library in _LIBRARIES:
        # no such library, no such function, or no ctypes
        with contextlib.suppress(OSError, AttributeError, TypeError):
            function, free = ctypes.CDLL(library).__cxa_demangle, ctypes.CDLL(None).free
            break
    else:
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.restype, free.argtypes = None, [ctypes.c_void_p]

    def demangled(name: str) -> str | None:
        address = function(name.encode(), None, None, None)
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode(errors="replace")
        finally:
            free(address)

    return demangled


def _of_numba(text: str) -> str:
    """Turns `make::_3clocals_3e::add(…)` into `add(…)`; Numba writes special characters as `_` and a code."""
    name, bracket, parameters = _NUMBERED_TYPE.sub("Record", text).partition("(")
    last = name.rpartition("::")[2]
    return ("<lambda>" if last == "_3clambda_3e" else last) + bracket + parameters


def _without_parameters(text: str) -> str:
    """Turns `f<…>(int, float*)` into `f<…>(…)`."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            return f"{text[:position]}({_ELLIPSIS})" if position < len(text) - 2 else text
    return text


def _without_template_arguments(text: str) -> str:
    """Turns `f<4, g<int>>(…)` into `f<…>(…)`; returns it unchanged if angle brackets are not in pairs."""
    if text.startswith("<"):  # Numba's `<lambda>`
        return text
    kept, depth = [], 0
    for char in text:
        depth -= char == ">"
        if depth < 0:
            return text
        if depth == 0:
            kept.append(char)
        depth += char == "<"
        if char == "<" and depth == 1:
            kept.append(_ELLIPSIS)
    return "".join(kept) if depth == 0 else text


_WARP = 32
_REGISTERS = 65536
"""32-bit registers of a multiprocessor, and the most that a block may have, from 7.0 on."""
_PARTITIONS = 4
"""Partitions of a multiprocessor; each has its share of the registers and of the warps."""
_REGISTER_UNIT = 256
"""Whole warps get registers, in this unit."""


def with_occupancy(kernel: KernelFacts, compute_capability: tuple[int, int] | None) -> KernelFacts:
    """Returns the facts of a launch with its theoretical occupancy, and with what limits that.

    It assumes a grid with enough blocks for every multiprocessor, and all the shared memory that the driver
    can give. It ignores named barriers and virtual resources, which a launch does not report. There is no
    occupancy if the compute capability is unknown here, or if not even one block fits on a multiprocessor.

    Formulas and granularities come from `cuda_occupancy.h` in the CUDA toolkit (read in CUDA 13.0 and 13.3).
    """
    if compute_capability is None or compute_capability not in MULTIPROCESSORS:
        return kernel
    limits = MULTIPROCESSORS[compute_capability]
    threads = math.prod(kernel.block or (0,))
    warps = -(-threads // _WARP)
    shared = _shared_bytes(kernel.shared_bytes, compute_capability[0])
    fitting = {
        f"blocks of {threads} threads": limits.warps // max(1, warps),
        f"{kernel.registers} registers a thread": _blocks_by_registers(kernel.registers, warps),
        f"{shared / 1024:.4g} KiB of shared memory a block": limits.shared_kib * 1024 // shared
        if shared
        else None,
        f"{limits.blocks} blocks a multiprocessor": limits.blocks,
    }
    known = {words: blocks for words, blocks in fitting.items() if blocks is not None}
    blocks = min(known.values())
    if blocks == 0 or warps == 0:
        return kernel
    limiting = [words for words, most in known.items() if most == blocks]
    share = blocks * warps / limits.warps
    return structs.replace(
        kernel,
        blocks_per_sm=blocks,
        occupancy=share,
        limited_by=None if share == 1 else " and ".join(limiting),
    )


def _blocks_by_registers(registers: int, warps: int) -> int | None:
    """Returns how many blocks the registers suffice for; None for a kernel without any."""
    if registers == 0:
        return None
    if _rounded_up(registers * _WARP, _REGISTER_UNIT) * _rounded_up(warps, _PARTITIONS) > _REGISTERS:
        return 0
    return threads_by_registers(registers) // _WARP // max(1, warps)


def threads_by_registers(registers: int) -> int:
    """Returns the threads of a multiprocessor that its registers suffice for, in whole warps."""
    return _REGISTERS // _PARTITIONS // _rounded_up(registers * _WARP, _REGISTER_UNIT) * _PARTITIONS * _WARP


def _shared_bytes(requested: int, major: int) -> int:
    """Returns what a block gets: from 8.0 on the driver reserves another 1 KiB, and the unit is 128 bytes."""
    return _rounded_up(requested + 1024, 128) if major >= 8 else _rounded_up(requested, 256)


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
