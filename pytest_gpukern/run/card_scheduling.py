"""Hands tests to workers of xdist that have a GPU each: a case goes to a GPU that it was recorded on.

Loads xdist, so only a run that distributes loads this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import EachScheduling, LoadScheduling

from pytest_gpukern.run.stash import FAILED_GPUS, RECORDED, RUN_FOLDER, gpus_of_workers
from pytest_gpukern.run.xdist_workers import gpu_of
from pytest_gpukern.values.untrusted_json import own_json

_AHEAD = 2
"""Tests that a worker has: xdist's workers begin one when they know the next."""


def scheduler(config: pytest.Config, log: Any) -> CardScheduling | OnEachCard | None:
    """Returns the scheduler of a run on several GPUs; None if xdist's own will do, or was asked for."""
    how, folder = config.getoption("dist"), config.stash.get(RUN_FOLDER, None)
    if how == "each":
        return OnEachCard(config, log)
    if how != "load" or folder is None or len(gpus_of_workers(config)) < 2:
        return None
    return CardScheduling(config, log, folder / RECORDED)


class CardScheduling(LoadScheduling):  # type: ignore[misc]
    """Schedules as xdist's `load` does, two tests a worker at a time.

    A worker first takes cases that were recorded on its GPU, then tests without a recorded GPU here. Among
    these it prefers tests with the inputs and reference of its last test, then tests with those that no other
    worker has: making them may take longer than measuring. Tests that destroy the CUDA context come last: if
    any were left, another worker would have to take over. If a worker may take no more, it ends. A worker
    that replaces another on the same GPU takes what that one left; it ends if it found other tests.

    Args:
        config: of the controller.
        log: xdist's.
        recorded: the file `stash.RECORDED` that a worker writes.
    """

    def __init__(self, config: pytest.Config, log: Any, recorded: Path) -> None:
        super().__init__(config, log)
        self._file = recorded
        self._here: dict[str, list[str]] = {}
        self._data: dict[str, str] = {}
        self._at_the_end: set[str] = set()
        self._last: dict[Any, str | None] = {}
        self._waiting: dict[tuple[bool, tuple[str, ...]], dict[str | None, deque[int]]] | None = None
        """Whether they come last, and their recorded GPUs → data → the pending tests; None: to be sorted."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Notes the tests that a worker found; one that found others leaves its own to the other workers."""
        super().add_node_collection(node, collection)
        if node in self.node2collection:
            return
        node.shutdown()  # xdist has logged how they differ
        self.config.stash.setdefault(FAILED_GPUS, set()).add(gpu_of(node))
        for other in self.nodes:
            self.check_schedule(other)
        if all(other.shutting_down for other in self.nodes):  # the controller names what did not run
            self.pending.clear()
            self._waiting = None

    def schedule(self) -> None:
        """Gives each worker its first tests; called again for a worker that replaces another."""
        first = self.collection is None
        if first and self._file.exists():
            given = set(gpus_of_workers(self.config))
            recorded = own_json.loads(self._file.read_text(encoding="utf-8"))
            self._data, self._at_the_end = recorded["data"], set(recorded["last"])
            self._here = {
                nodeid: [uuid for uuid in uuids if uuid in given]
                for nodeid, uuids in recorded["gpus"].items()
            }
        super().schedule()
        for most in (1, _AHEAD) if first and self.collection else ():  # of few tests, no worker takes two
            for node in self.nodes:
                self._fill(node, most)

    def check_schedule(self, node: Any, duration: float = 0) -> None:  # noqa: ARG002 - xdist's
        """Gives a worker its next tests, or lets it end if there are none for it."""
        self._fill(node, _AHEAD)

    def mark_test_pending(self, item: str) -> None:
        """Takes back a test that a worker did not begin."""
        self._waiting = None
        super().mark_test_pending(item)

    def remove_node(self, node: Any) -> str | None:
        """Takes back the tests of a worker that ended; returns the one that it ran, or None."""
        self._waiting = None
        if self.collection is None:  # its replacement has yet to collect
            self.node2collection.pop(node, None)
        ran: str | None = super().remove_node(node)
        return ran

    def _fill(self, node: Any, most: int) -> None:
        """Gives a worker tests until it has so many; it ends if there are too few for it."""
        if node.shutting_down or node not in self.node2collection:
            return
        has = self.node2pending[node]
        while len(has) < most and (index := self._next_for(node)) is not None:
            has.append(index)
            node.send_runtest_some([index])
        if len(has) < most:
            node.shutdown()

    def _send_tests(self, node: Any, num: int) -> None:
        """Leaves the first distribution to `schedule`."""

    def _sorted(self) -> dict[tuple[bool, tuple[str, ...]], dict[str | None, deque[int]]]:
        """Returns what `_waiting` holds."""
        waiting: dict[tuple[bool, tuple[str, ...]], dict[str | None, deque[int]]] = {}
        for index in self.pending:
            nodeid = self.collection[index]
            kind = (nodeid in self._at_the_end, tuple(self._here.get(nodeid, ())))
            waiting.setdefault(kind, {}).setdefault(self._data.get(nodeid), deque()).append(index)
        return waiting

    def _next_for(self, node: Any) -> int | None:
        """Takes the test that a worker should run next from those that wait; None if there is none for it."""
        if self._waiting is None:
            self._waiting = self._sorted()
        uuid, last = gpu_of(node), self._last.get(node)
        others = {self._last.get(other) for other in self.nodes if other is not node}
        failed = self.config.stash.get(FAILED_GPUS, ())
        candidates = []
        for kind, by_data in self._waiting.items():
            late, uuids = kind
            recorded = [on for on in uuids if on not in failed]
            if recorded and uuid not in recorded:
                continue
            fresh = (data for data in by_data if data not in others)
            data = last if last in by_data else next(fresh, next(iter(by_data)))
            rank = (late, not recorded, data != last, data in others, by_data[data][0])
            candidates.append((rank, kind, data))
        if not candidates:
            return None
        (*_, index), kind, data = min(candidates, key=lambda candidate: candidate[0])
        of_its_data = self._waiting[kind][data]
        of_its_data.popleft()
        if not of_its_data:
            del self._waiting[kind][data]
            if not self._waiting[kind]:
                del self._waiting[kind]
        self.pending.remove(index)
        self._last[node] = data
        return index


class OnEachCard(EachScheduling):  # type: ignore[misc]
    """Schedules as xdist's `each` does, also when several workers are replaced.

    xdist forgets the tests of a worker that replaced another, and expects each to have collected at once.
    """

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Notes the tests that a worker found; one that can take over none ends."""
        replaces = self.collection_is_completed
        super().add_node_collection(node, collection)
        self.node2collection.setdefault(node, list(collection))
        if replaces and not self.node2pending[node]:
            self._started.append(node)
            node.shutdown()
            for left in [left for left in self._removed2pending if left.gateway.spec == node.gateway.spec]:
                del self._removed2pending[left]  # it found other tests; the controller names these

    def remove_node(self, node: Any) -> str | None:
        """Notes what a worker that ended has left; returns the test that it ran, or None."""
        if not self.collection_is_completed:  # its replacement has yet to collect
            self.node2collection.pop(node, None)
        ran: str | None = super().remove_node(node)
        return ran

    def schedule(self) -> None:
        """Gives workers their tests, without those that have yet to collect."""
        to_come = [node for node in self.nodes if node not in self.node2collection]
        self._started: list[Any] = [*self._started, *to_come]
        super().schedule()
        self._started = [node for node in self._started if node not in to_come]
