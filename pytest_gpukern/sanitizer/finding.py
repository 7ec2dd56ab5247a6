"""What a tool of compute-sanitizer has found, whatever the tool."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pytest_gpukern.kernel_names import readable

if TYPE_CHECKING:
    from pytest_gpukern.result import JsonDict

Index = tuple[int, int, int]
"""Of a thread in its block, or of a block in its grid: x, y, z."""


@dataclass(frozen=True)
class Place:
    """Where something is in a source, as far as a stack frame says it."""

    function: str | None = None
    file: str | None = None
    line: int | None = None
    module: str | None = None


@dataclass(frozen=True)
class Finding:
    """One record of a tool.

    Attributes:
        kind: the tool's word for it, such as `Precise`, `Hazard`, `Initcheck`, `Synccheck`.
        text: what it says, such as "Invalid __global__ write of size 4 bytes".
        kernel: the kernel's name as it was compiled; None where no kernel is named.
        block: its index in the grid, where told.
        thread: its index in the block, where told.
        device: where in the kernels' sources, the faulting place first.
        host: stack of the host when the kernel was launched, innermost first.
        record: the whole record.
    """

    kind: str
    text: str
    kernel: str | None = None
    block: Index | None = None
    thread: Index | None = None
    device: tuple[Place, ...] = ()
    host: tuple[Place, ...] = ()
    record: str = ""

    def in_words(self, place: str | None = None) -> str:
        """One line: `invalid __global__ write of 4 bytes in add_flat, block (1, 0, 0), … on_numba.py:31`."""
        said = self.text.replace(" of size ", " of ").rstrip(".")
        parts = [said[:1].lower() + said[1:] if said[1:2].islower() else said]
        if self.kernel is not None:
            parts[0] += f" in {readable(self.kernel).partition('(')[0]}"
        if self.block is not None:
            parts.append(f"block {self.block}")
        if self.thread is not None:
            parts.append(f"thread {self.thread}")
        if place is not None:
            parts.append(place)
        return ", ".join(parts)

    def to_json(self) -> JsonDict:
        """As plain JSON."""
        return asdict(self)
