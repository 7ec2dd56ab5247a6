"""Says what a stand-in for the device records: a launch that can be compiled for any architecture.

`numba.py` and `triton.py` hold a stand-in each, and all that rests on the internals of these libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pytest_gpukern.gpu.fingerprint import library_versions

Dimensions = tuple[int, int, int]


class CannotBeKnown(Exception):  # noqa: N818 - it says what is so, and nothing is wrong
    """Says that host code wants what only a device computes, such as the contents of a result."""


class DoesNotCompile(Exception):  # noqa: N818
    """Holds the compiler's message about a kernel, with the user's line as far as it is known."""


class Compiled(NamedTuple):
    """Holds a kernel compiled for one architecture.

    Attributes:
        image: the cubin.
        entry: the kernel's mangled name in it.
        block: threads in x, y, z.
        shared_bytes: dynamic shared memory of a block; the cubin says how much is static.
    """

    image: bytes
    entry: str
    block: Dimensions
    shared_bytes: int = 0


@dataclass(frozen=True)
class Launch:
    """Holds a launch of a kernel.

    Attributes:
        kernel: the kernel's name, as its author wrote it.
        grid: blocks in x, y, z.
        compiled: compiles it for an architecture such as `sm_90`, as the library would on such a device, with
            the launch's argument types and options. Raises `DoesNotCompile`.
    """

    kernel: str
    grid: Dimensions
    compiled: Callable[[str], Compiled]


def require(distribution: str, oldest: str, before: str | None, extra: str) -> None:
    """Raises ImportError, with value, rule and remedy, if a library is missing or of another version.

    Args:
        before: the first version that will not do, or None.
    """
    from packaging.version import Version

    remedy = f"pip install 'pytest-gpukern[{extra}]'"
    installed = library_versions((distribution,)).get(distribution)
    if installed is None:
        raise ImportError(f"{distribution} is not installed; {remedy}")
    rule = f"{oldest} or newer" if before is None else f">={oldest},<{before}"
    if Version(installed) < Version(oldest) or (before is not None and Version(installed) >= Version(before)):
        raise ImportError(f"{distribution} is {installed}, and must be {rule}; {remedy}")


class StandIn(Protocol):
    """Stands in for the device in one library, in a process that has no GPU and wants none.

    Attributes:
        stream: what a variant gets as `stream`.
    """

    stream: Any

    def install(self, record: Callable[[Launch], None]) -> None:
        """Takes the device's place, before modules of the user are imported; calls `record` for each launch.

        Raises:
            ImportError: a library is missing, or its version is none that this was tested with.
        """

    def begin(self) -> None:
        """Begins another test: nothing is launched yet."""

    def given(self, array: Any) -> Any:
        """Returns the library's array for one of NumPy, as a variant gets it. Its contents may be missing."""

    def why_unknown(self, error: BaseException) -> str | None:
        """Says why an error of the user's code means `CannotBeKnown`, or returns None."""
