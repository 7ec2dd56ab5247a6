"""Which of the modules with a kernel of one name a launch took its kernel from.

In CUPTI's records and in a baseline kernels have names, which do not tell modules apart: CuPy compiles an
elementwise kernel anew for small and for large arrays, cuRAND has two of each generator, and a user has an
`add` in two test files. A launch names the handle of the kernel, too, but nothing says which module a
handle belongs to. The order does: a library gets a new module's handles after it was loaded, so that a handle
which was never seen belongs to the module of which none was.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True)
class Origin:
    """Which modules a kernel was launched from.

    Attributes:
        modules: their numbers.
        each: whether it was launched from every one of them; otherwise, from one or some.
    """

    modules: frozenset[int]
    each: bool

    def __or__(self, other: Origin) -> Origin:
        """That of the launches of both."""
        return Origin(self.modules | other.modules, each=self.each and other.each)


_NOWHERE = Origin(frozenset(), each=True)


class KernelModules:
    """Modules by the kernels in them, and by what was launched while somebody observed.

    An observation has `begin` and `end`; meanwhile `loaded` and `launched` are told in the order in which it
    happened. Which kernels a module has may be told in any order, before `end`.
    """

    def __init__(self) -> None:
        self._with: defaultdict[str, set[int]] = defaultdict(set)
        self._of_handle: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._earlier: set[int] = set()
        self._events: list[int | tuple[str, int]] = []
        self._since_loaded: set[tuple[str, int]] = set()
        self._own = True
        self._launched: dict[str, Origin] = {}

    def begin(self, *, own: bool) -> None:
        """Begins an observation.

        Args:
            own: whether of what is to be timed, which `of` is about from then on.
        """
        self._clear()
        self._own = own
        if own:
            self._launched.clear()

    def loaded(self, module: int) -> None:
        """A module was loaded, of this number."""
        self._events.append(module)
        self._since_loaded.clear()

    def launched(self, kernel: str, handle: int) -> None:
        """A kernel of this mangled name was launched by this handle."""
        launch = (kernel, handle)
        if launch not in self._since_loaded:  # another one tells nothing more, and there may be millions
            self._since_loaded.add(launch)
            self._events.append(launch)

    def has(self, module: int, kernel: str) -> None:
        """A module has a kernel of this mangled name."""
        self._with[kernel].add(module)

    def end(self) -> None:
        """Ends an observation: finds the modules of what was launched in it."""
        new: list[int] = []
        again: dict[tuple[str, int], int] = {}
        for event in self._events:
            if isinstance(event, int):
                new.append(event)
                continue
            known = self._of_handle[event[0]].get(event[1])
            if known is None:
                self._meet(*event, self._earlier.union(new))
            elif known in self._earlier:
                again[event] = len(new)
        for (kernel, handle), loaded_before in again.items():
            # An unloaded module's handles are given out again.
            self._meet(kernel, handle, set(new[:loaded_before]))
        for event in self._events if self._own else ():
            if not isinstance(event, int):
                self._launched[event[0]] = self._launched.get(event[0], _NOWHERE) | self._origin(*event)
        self._earlier.update(new)
        self._clear()

    def of(self, kernel: str) -> Origin:
        """Where a kernel of this mangled name came from in the last observation of what is to be timed.

        If it was not launched then, it may be from any module that has one.
        """
        return self._launched.get(kernel) or self._any(kernel)

    def _clear(self) -> None:
        self._events.clear()
        self._since_loaded.clear()

    def _meet(self, kernel: str, handle: int, modules: AbstractSet[int]) -> None:
        """A handle is that of the one of these modules of which none was seen; of none, if there are more."""
        known = self._of_handle[kernel]
        unseen = modules & self._with[kernel] - set(known.values())
        if len(unseen) == 1:
            (known[handle],) = unseen

    def _origin(self, kernel: str, handle: int) -> Origin:
        known = self._of_handle[kernel].get(handle)
        return self._any(kernel) if known is None else Origin(frozenset({known}), each=True)

    def _any(self, kernel: str) -> Origin:
        return Origin(frozenset(self._with[kernel]), each=False)
