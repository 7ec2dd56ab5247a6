"""Says what a stand-in for the device records: a launch that can be compiled for any architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from pytest_gpukern.gpu.fingerprint import library_versions

Dimensions = tuple[int, int, int]


class H200:
    """Says what any library tells host code about the device, whatever is compiled for; an SXM module."""

    name, uuid = "NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000000"
    memory_bytes, multiprocessors, l2_bytes = 141 * 10**9, 132, 60 << 20


class CannotBeKnown(Exception):  # noqa: N818 - it says what is so, and nothing is wrong
    """Says that host code wants what only a device computes, such as the contents of a result."""


class Unknown:
    """Stands for what only a device could tell: a compiled kernel that it has loaded, a time."""

    _what = ""  # until `__init__` has run, which `copy.copy` spares

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise CannotBeKnown(f"host code reads what only a device computes: {name} of {self._what}")


class DoesNotCompile(Exception):  # noqa: N818
    """Holds the compiler's message about a kernel, with the user's line as far as it is known."""


class Compiled(NamedTuple):
    """Holds a kernel compiled for one architecture."""

    image: bytes  # the cubin
    entry: str  # the kernel's mangled name in it
    block: Dimensions  # threads
    shared_bytes: int  # dynamic shared memory of a block; the cubin says how much is static


class CapturedLaunch(NamedTuple):
    """Holds a launch of a kernel; `compiled` compiles it for an architecture or raises `DoesNotCompile`."""

    kernel: str  # its name, as its author wrote it
    grid: Dimensions  # blocks
    compiled: Callable[[str], Compiled]  # from `sm_90`, as the library would on such a device
    compilers: tuple[str, ...]  # distributions that make its machine code


def capability(architecture: str) -> tuple[int, int]:
    """Returns the compute capability of an architecture, such as (9, 0) of `sm_90`."""
    return divmod(int(architecture.removeprefix("sm_")), 10)


def require(distribution: str, oldest: str, before: str | None, extra: str) -> None:
    """Raises ImportError, with value, rule and remedy, if a library is missing, too old, or not `before`."""
    from packaging.version import Version

    remedy = f"pip install 'pytest-gpukern[{extra}]'"
    installed = library_versions((distribution,)).get(distribution)
    if installed is None:
        raise ImportError(f"{distribution} is not installed; {remedy}")
    if Version(installed) < Version(oldest) or (before and Version(installed) >= Version(before)):
        rule = f">={oldest},<{before}" if before else f"{oldest} or newer"
        raise ImportError(f"{distribution} is {installed}, and must be {rule}; {remedy}")


class StandIn(Protocol):
    """Stands in for the device in one library, in a process that has no GPU and wants none."""

    stream: Any  # what a variant gets as `stream`

    def install(self, record: Callable[[CapturedLaunch], None]) -> None:
        """Takes the device's place, before modules of the user are imported; calls `record` for each launch.

        Raises ImportError if a library is missing, or of a version that this was not tested with.
        """

    def begin(self) -> None:
        """Begins another test: nothing is launched yet. Of some libraries nothing has to be forgotten."""

    def choose(self, autotuned: Mapping[str, Mapping[str, str]]) -> None:
        """Says which configuration the autotuner of a kernel takes from now on; its first if none is said."""

    def given(self, array: Any) -> Any:
        """Returns the library's array for one of NumPy, as a variant gets it. Its contents may be missing."""

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
