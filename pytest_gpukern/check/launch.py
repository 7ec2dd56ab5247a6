"""Says what a launch is to a check: of a variant on its buffers, or of a test's own call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpukern.backends.foreign_array import why_lazy
from pytest_gpukern.values.determinism import of_launches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from threading import Thread

    import numpy as np

    from pytest_gpukern.arrays.compare import Comparison, Tolerance
    from pytest_gpukern.arrays.memory import Damage
    from pytest_gpukern.check.diagnosis import Memory
    from pytest_gpukern.values.determinism import Determinism
    from pytest_gpukern.values.result import OutputError


@dataclass(frozen=True)
class Made:
    """Holds what is seen of one launch as it returns.

    Attributes:
        returned: what it returned.
        time_ns: wall time until the device was idle.
        threads: Python's threads that it started and that still work.
        bits: a hash of each output, taken only if threads still work.
    """

    returned: Any
    time_ns: float
    threads: tuple[Thread, ...] = ()
    bits: Mapping[str, str | None] = field(default_factory=dict)


class Written(NamedTuple):
    """Says what a launch left of an output that has no reference: elements unwritten, or changed elsewhere.

    Attributes:
        unwritten: number of elements that still hold the poison.
        first: flat index of the first of them, or -1.
        changed: for each element, whether it changed outside the declared region; None without a region.
    """

    name: str
    shape: tuple[int, ...]
    unwritten: int
    first: int
    changed: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Compared:
    """Holds an output beside its reference: of a launch, or one that a test verifies.

    Attributes:
        found: returns the output on the host.
        expected: its reference.
        poisoned: whether it held a poison before, which may explain what it holds now.
        more: what else is known of a mismatch, in words.
        is_stale: returns whether it is right for what the inputs held before.
    """

    name: str
    comparison: Comparison
    tolerance: Tolerance
    found: Callable[[], np.ndarray[Any, Any]]
    expected: np.ndarray[Any, Any]
    poisoned: bool = True
    more: str = ""
    is_stale: Callable[[], bool] = bool


class Launch:
    """Describes what is launched, its arrays and what is declared about them; `engine.checked` launches it.

    The engine calls `bind`, `fill`, `run` and `take` in this order. Checks look at all else.

    Attributes:
        by: what to call it in messages.
        place: which launch of several it is, in words; often empty.
        determinism: what is declared for its outputs, or None.
        returns_apart: whether the arrays that it returns must not overlap each other.
        sharing_remedy: what to do about a result that shares memory with an input.
        renewing_remedy: what to do about one that shares memory with an earlier result.
        modified_remedy: what to do about an input that is written, if it is written on purpose.
        errors: worst error of each output so far.
        notes: what is doubtful but not wrong, in words, each once.
        seen_bits: a hash of each output after each launch on the same inputs.
        first_call_ns: wall time of the first launch, compiling and loading included.
        last_call_ns: wall time of the last one.
        inputs: the arrays that it must not write, by name.
        results: the arrays that its last launch returned as outputs, by name.
        renewed: those of them that must not lie in what is held.
        held: what earlier launches returned and somebody still holds, by words.
    """

    by = "the launch"
    place = ""
    determinism: str | None = None
    returns_apart = True
    sharing_remedy = renewing_remedy = "each launch must return new memory"
    modified_remedy = ""

    def __init__(self) -> None:
        self.errors: dict[str, OutputError] = {}
        self.notes: dict[str, None] = {}
        self.seen_bits: dict[str, list[str | None]] = {}
        self.first_call_ns: float | None = None
        self.last_call_ns: float | None = None
        self.inputs: Mapping[str, Memory] = {}
        self.results: Mapping[str, Memory] = {}
        self.renewed: Mapping[str, Memory] = {}
        self.held: Mapping[str, Memory] = {}

    @property
    def steady(self) -> list[str]:
        """Names the outputs that had the same bits after every launch so far."""
        return [name for name, bits in self.seen_bits.items() if None not in bits and len(set(bits)) == 1]

    @property
    def kinds(self) -> dict[str, Determinism | None]:
        """The determinism of each output, as far as its hashes show it."""
        return {name: of_launches(bits) for name, bits in self.seen_bits.items()}

    def bind(self) -> None:
        """Finds the arrays of the next launch; raises IncorrectError if they overlap where they must not."""

    def fill(self, *, poisoned: bool) -> None:
        """Puts into the outputs what they hold before a launch: a poison, or what is updated."""
        raise NotImplementedError

    def run(self) -> Any:
        """Launches once, waits, and returns what was returned."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits for all work on the device."""
        raise NotImplementedError

    def take(self, returned: Any) -> None:
        """Makes what a launch returned its outputs, and looks at what it left in them."""
        raise NotImplementedError

    def take_timed(self) -> None:
        """Does the same after a launch that was timed."""
        raise NotImplementedError

    def why_undone(self, value: Any) -> str | None:
        """Says why a returned value stands for work that the launch has not done, or None."""
        return why_lazy(value)

    def damage(self) -> list[Damage]:
        """Returns what was written into guard zones; the device must be idle."""
        raise NotImplementedError

    def written(self) -> Iterable[Written]:
        """Returns what the launch left of each output that has no reference."""
        return ()

    def compared(self) -> Iterable[Compared]:
        """Returns each output that has a reference beside it."""
        return ()

    def digests_before(self) -> Mapping[str, Any]:
        """Returns a hash of each input that must stay as it is, from before the launch."""
        raise NotImplementedError

    def digests(self) -> Mapping[str, Any]:
        """Returns a hash of each input now."""
        raise NotImplementedError

    def bits(self) -> dict[str, str | None]:
        """Returns a hash of each output now."""
        raise NotImplementedError

    def note_bits(self) -> None:
        """Adds to `seen_bits`, if the launch was on the same inputs as the first."""
