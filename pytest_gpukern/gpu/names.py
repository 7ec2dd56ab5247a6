"""Names of kernels for people: demangled, without what only the compiler needs."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")
"""Libraries of the C++ run time that hold the demangler, as their makers name them."""
_LONGEST_NAME = 8192  # CUTLASS's are a few thousand characters; a crafted one must not cost minutes
_NUMBA_TAG = re.compile(r"\[abi:v\d+[,\]]")  # the demangler has a bracket a tag, debuggers have one for all
_TAG = re.compile(r"\[abi:[^\]]*\]")
_NUMBERED_TYPE = re.compile(r"\bRecord<\d+>")  # Numba's of a structure: counts the types of the process
_VERSIONED_NAMESPACE = re.compile(r"\b[A-Z]+_\d\w*_NS::")
_NOISE = ("(anonymous namespace)::", ", mutable, aligned", ", aligned")
_ELLIPSIS = "…"


@functools.lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """A kernel's name as its author would write it; as it is where it cannot be demangled.

    Numba's tags are left out, and the modules and functions around a Numba kernel; so are the return type,
    versioned namespaces such as CUB's, and layout details of Numba's array types.
    """
    demangled = demangle(name)
    if demangled is None:
        return _of_numba(_TAG.sub("", name)) if _NUMBA_TAG.search(name) else name
    text = demangled.removeprefix("void ").replace("> >", ">>")
    for noise in _NOISE:
        text = text.replace(noise, "")
    text = _VERSIONED_NAMESPACE.sub("", text)
    if _NUMBA_TAG.search(text):
        return _of_numba(_TAG.sub("", text))
    return _TAG.sub("", text)


def fitted(text: str, width: int) -> str:
    """A readable name within `width` characters as far as leaving out its parameters and template arguments
    helps; what was left out is an ellipsis."""
    if len(text) > width:
        text = _without_parameters(text)
    if len(text) > width:
        text = _without_template_arguments(text)
    return text


def demangle(name: str) -> str | None:
    """What a mangled name means in C++, or None for another name, or where no C++ run time can be loaded.

    By `__cxa_demangle` of the Itanium C++ ABI, which NVIDIA's compilers and Numba mangle by:
    https://itanium-cxx-abi.github.io/cxx-abi/abi.html#demangler
    """
    if not name.startswith("_Z") or len(name) > _LONGEST_NAME:
        return None
    found = _demangler()
    return found(name) if found is not None else None


@functools.cache
def _demangler() -> Callable[[str], str | None] | None:
    for library in _LIBRARIES:
        try:
            function = ctypes.CDLL(library).__cxa_demangle
            free = ctypes.CDLL(None).free
        except (OSError, AttributeError, TypeError):  # not there, not in it, or a system without either
            continue
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
    """`make::_3clocals_3e::add(…)` as `add(…)`; Numba writes what C++ does not allow as `_` and its code."""
    name, bracket, parameters = _NUMBERED_TYPE.sub("Record", text).partition("(")
    last = name.rpartition("::")[2]
    return ("<lambda>" if last == "_3clambda_3e" else last) + bracket + parameters


def _without_parameters(text: str) -> str:
    """`f<…>(int, float*)` as `f<…>(…)`."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            return f"{text[:position]}({_ELLIPSIS})" if position < len(text) - 2 else text
    return text


def _without_template_arguments(text: str) -> str:
    """`f<4, g<int>>(…)` as `f<…>(…)`; as it is where the angle brackets are not pairs."""
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
