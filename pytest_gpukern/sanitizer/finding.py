"""What a tool of compute-sanitizer has found, whatever the tool."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpukern.values.result import JsonDict

Index = tuple[int, int, int]
"""Of a thread in its block, or of a block in its grid: x, y, z."""


@dataclass(frozen=True)
class Place:
    """Where something is in a source, as far as a stack frame says it."""

    function: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Access:
    """One of the two accesses of a hazard.

    Attributes:
        what: the tool's word for it: `Write`, `Read`.
        thread: its index in the block, where told.
        place: where in the kernel's source.
    """

    what: str
    thread: Index | None = None
    place: Place = Place()


@dataclass(frozen=True)
class Finding:
    """One record of a tool.

    Attributes:
        kind: the tool's word for it, such as `Precise`, `Hazard`, `Initcheck`, `Synccheck`.
        text: what it says, such as "Invalid __global__ write of size 4 bytes is out of bounds".
        kernel: the kernel's name as it was compiled; None where no kernel is named.
        block: its index in the grid, where told.
        thread: its index in the block, where told; of a hazard that of the earlier access.
        accesses: both of a hazard, the earlier one first; empty for the rest.
        device: where in the kernels' sources, the faulting place first.
        host: stack of the host when the kernel was launched, innermost first.
        record: the record, without the frames of the host that name neither function nor file.
    """

    kind: str
    text: str
    kernel: str | None = None
    block: Index | None = None
    thread: Index | None = None
    accesses: tuple[Access, ...] = ()
    device: tuple[Place, ...] = ()
    host: tuple[Place, ...] = ()
    record: str = ""

    def to_json(self) -> JsonDict:
        """As plain JSON."""
        return asdict(self)
