"""Hands a case to a worker of xdist on a GPU that it was recorded on, if that GPU is here.

Loads xdist, so only a run that distributes loads this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScheduling

from pytest_gpukern.run.stash import FAILED_GPUS, RECORDED, RUN_FOLDER, gpus_of_workers
from pytest_gpukern.run.xdist_workers import gpu_of
from pytest_gpukern.values.untrusted_json import own_json

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pytest

_AHEAD = 2
"""Tests that a worker has: xdist's workers begin one when they know the next."""


def scheduler(config: pytest.Config, log: Any) -> CardScheduling | None:
    """Returns the scheduler of a run on several GPUs; None if xdist's own will do, or was asked for."""
    if config.getoption("dist") != "load" or len(gpus_of_workers(config)) < 2:
        return None
    return CardScheduling(config, log, config.stash[RUN_FOLDER] / RECORDED)


class CardScheduling(LoadScheduling):  # type: ignore[misc]
    """Schedules as xdist's `load` does, two tests a worker at a time.

    A worker first takes cases that were recorded on its GPU, then tests without a recorded GPU here. Among
    these it prefers tests with the inputs and reference of its last test, then tests with those that no other
    worker has: making them may take longer than measuring. Tests that destroy the CUDA context come last: if
    any were left, another worker would have to take over. If a worker may take no more, it ends. A worker
    that replaces another on the same GPU takes what that one left.

    Args:
        config: of the controller.
        log: xdist's.
        recorded: the file `stash.RECORDED` that a worker writes.
    """

    def __init__(self, config: pytest.Config, log: Any, recorded: Path) -> None:
        super().__init__(config, log)
        self.maxschedchunk = 1
        self._file = recorded
        self._here: dict[str, list[str]] = {}
        self._data: dict[str, str] = {}
        self._last: dict[Any, str | None] = {}
        self._at_the_end: set[str] = set()

    def schedule(self) -> None:
        """Gives each worker its first tests; called again for a worker that replaces another."""
        if self.collection is None and self._file.exists():
            given = set(gpus_of_workers(self.config))
            told = own_json.loads(self._file.read_text(encoding="utf-8"))
            self._data, self._at_the_end = told["data"], set(told["last"])
            self._here = {
                nodeid: [uuid for uuid in uuids if uuid in given] for nodeid, uuids in told["gpus"].items()
            }
        super().schedule()
        for node in self.nodes if self.collection else ():
            self.check_schedule(node)

    def check_schedule(self, node: Any, duration: float = 0) -> None:  # noqa: ARG002 - xdist's
        """Gives a worker its next tests, or lets it end if there are none for it."""
        if node.shutting_down:
            return
        self._send_tests(node, _AHEAD - len(self.node2pending[node]))
        if len(self.node2pending[node]) < _AHEAD:
            node.shutdown()

    def _send_tests(self, node: Any, num: int) -> None:
        """Sends a worker up to `num` of the tests that it may take."""
        chosen = []
        for _ in range(num):
            index = self._best_for(node)
            if index is None:
                break
            self.pending.remove(index)
            self._last[node] = self._data.get(self.collection[index])
            chosen.append(index)
        if chosen:
            self.node2pending[node].extend(chosen)
            node.send_runtest_some(chosen)

    def _best_for(self, node: Any) -> int | None:
        """Returns the test that a worker should take next, or None if there is none for it."""
        uuid, last = gpu_of(node), self._last.get(node)
        others = {self._last.get(other) for other in self.nodes if other is not node}
        best, rank = None, None
        for index in self.pending:
            recorded = self._recorded_on(index)
            if recorded and uuid not in recorded:
                continue
            nodeid = self.collection[index]
            data, late = self._data.get(nodeid), nodeid in self._at_the_end
            its_rank = (late, not recorded, data != last, data in others)
            if rank is None or its_rank < rank:
                best, rank = index, its_rank
            if data == last and (recorded or not self._here) and not late:  # none can be better
                break
        return best

    def _recorded_on(self, index: int) -> Collection[str]:
        """Returns the GPUs of this run that a test was recorded on, and that still work."""
        failed = self.config.stash.get(FAILED_GPUS, ())
        return [uuid for uuid in self._here.get(self.collection[index], ()) if uuid not in failed]
