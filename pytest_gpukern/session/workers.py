"""Gives each worker of xdist a GPU of its own, on which its measuring process runs its tests.

Workers hold no CUDA context. A case goes to a GPU that it was recorded on.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_gpukern.session.arguments import sessions_of
from pytest_gpukern.session.stash import Assignment, device_uuid, environment_of, settings_of
from pytest_gpukern.values.atomic_file import TemporaryFolder

_AHEAD = 2
"""Tests that a worker has: xdist's workers begin one when they know the next."""
_PINNED = "CUDA_VISIBLE_DEVICES"
RECORDED = "recorded.json"
"""File in the folder of a run: `OnRecord`."""


class OnRecord(msgspec.Struct):
    """Holds what each worker writes, since the controller collects no tests.

    Attributes:
        cards: test → UUIDs of the GPUs that it was recorded on.
        data: test → its problem and point, whose inputs and reference a worker makes once.
    """

    cards: dict[str, tuple[str, ...]] = {}
    data: dict[str, str] = {}


class Workers:
    """Tells each worker what it is to use; a plugin of the controller.

    Attributes:
        cards: UUIDs of the GPUs that workers may measure on; empty for a run that measures on none.
        count: how many workers there are at first.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.cards = [card.uuid for card in environment_of(config).gpu.cards]
        numbers = (spec.partition("*")[0] for spec in config.getoption("tx"))  # as in 2*popen
        self.count = sum(int(number) if number.isdigit() else 1 for number in numbers)
        self._nodes: set[Any] = set()
        """Workers that run or start."""
        self._freed: str | None = None
        """The GPU of the worker that ended last."""
        self._recorded: OnRecord | None = None
        self._folder: Path | None = None
        if self.cards:
            folder = TemporaryFolder("run")
            config.add_cleanup(folder.cleanup)
            self._folder = Path(folder.name)
        if self.cards and config.getoption("dist") == "each":
            raise pytest.UsageError(
                "--dist=each: each GPU would measure every case, but a run holds a case once. "
                "Run pytest for one GPU after the other, with --gpukern-device=UUID"
            )

    @property
    def in_use(self) -> list[str]:
        of_nodes = [self.card_of(node) for node in self._nodes if not node.shutting_down]
        return [card for card in of_nodes if card in self.cards]

    @property
    def recorded(self) -> OnRecord:
        """Returns what is known of tests, once any worker has written it."""
        file = None if self._folder is None else self._folder / RECORDED
        if self._recorded is None and file is not None and file.exists():
            self._recorded = msgspec.json.decode(file.read_bytes(), type=OnRecord)
        return self._recorded or OnRecord()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        self.count = len(specs)
        here, count = sum(bool(spec.popen) for spec in specs), len(self.cards)
        if not self.cards or here <= count:
            return
        named, model = settings_of(self._config).device, environment_of(self._config).gpu.cards[0].name
        there = f"{count} visible {'GPU' if count == 1 else 'GPUs'} of the model {model}"
        if named is not None:
            there = f"the one GPU that --gpukern-device={named} names"
        raise pytest.UsageError(
            f"-n {here}: {here} workers cannot measure on {there}. Workers that share a GPU take "
            f"turns, and are slower than one. Use -n auto, which starts one worker for each GPU, or "
            f"-n {count}"
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker its GPU, and how to start processes: it does not know what the run was given."""
        spec, config = node.gateway.spec, self._config
        seed = environment_of(config).settings.seed
        here = bool(spec.popen)  # others have neither these GPUs nor our folder
        card = device_uuid(config) if here else None
        if self.cards and here:
            # One that is shutting down still runs its last tests.
            taken = [self.card_of(other) for other in self._nodes]
            least = min(self.cards, key=lambda card: (taken.count(card), card != self._freed))
            card = spec.env.get(_PINNED) or least
        self._nodes.add(node)
        assignment = Assignment(
            seed=seed,
            children=sessions_of(config, device=card, seed=seed).to_json(),
            card=card,
            others=tuple(uuid for uuid in self.cards if uuid != card),
            run_folder=str(self._folder) if self._folder is not None and here else None,
        )
        node.workerinput["gpukern"] = vars(assignment)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Has the worker that replaces another begin on the same GPU."""
        if node in self._nodes:
            self._nodes.remove(node)
            self._freed = self.card_of(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self) -> CardScheduling | None:
        """Returns the scheduler of a run on several GPUs; None if xdist's own will do, or was asked for."""
        several = len(set(self.in_use)) > 1 and self._config.getoption("dist") == "load"
        return CardScheduling(self._config, self) if several else None

    def card_of(self, node: Any) -> Any:
        return node.workerinput["gpukern"]["card"]


class CardScheduling:
    """Hands tests to workers, two at a time: xdist's `Scheduling`.

    A worker first takes cases that were recorded on its GPU, then tests without a recorded GPU here. Among
    these it prefers tests with the inputs and reference of its last test, then tests with those that no other
    worker has: making them may take longer than measuring. If there are none for it, it ends. A worker that
    replaces another on the same GPU takes what that one left; it ends if it found other tests.

    Args:
        config: of the controller.
        workers: with their GPUs.
    """

    def __init__(self, config: pytest.Config, workers: Workers) -> None:
        self._config = config
        self._workers = workers
        self._collected: dict[Any, list[str]] = {}
        self._given: dict[Any, list[int]] = {}
        """Worker → the tests that it has, first the one that it runs."""
        self._tests: list[str] = []
        self._left: dict[tuple[tuple[str, ...], str | None], list[int]] = {}
        """A test's recorded GPUs and its data → the tests that no worker has, in their order."""
        self._last: dict[Any, str | None] = {}

    @property
    def nodes(self) -> list[Any]:
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._tests) or len(self._collected) >= self._workers.count

    @property
    def tests_finished(self) -> bool:
        done = self.collection_is_completed and not any(self._left.values())
        return done and all(len(tests) < _AHEAD for tests in self._given.values())

    @property
    def has_pending(self) -> bool:
        return any(self._left.values()) or any(self._given.values())

    def add_node(self, node: Any) -> None:
        self._given[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Notes the tests that a worker found; one that found others than those before it ends."""
        if self._tests and list(collection) != self._tests:
            node.shutdown()
            if all(other.shutting_down for other in self.nodes):  # the controller names what did not run
                self._left.clear()
        else:
            self._collected[node] = list(collection)

    def schedule(self) -> None:
        """Gives each worker its first tests; called again for a worker that replaces another."""
        first = not self._tests
        if first:
            (one, tests), *others = self._collected.items()
            for other, collection in others:
                if collection != tests:
                    self._report_difference(one, other)
                    return
            self._tests = tests
            for index in range(len(tests)):
                self._put_back(index)
        for most in (1, _AHEAD) if first else (_AHEAD,):  # of few tests, no worker takes two
            self._fill_all(most)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:  # noqa: ARG002
        self._given[node].remove(item_index)
        self._fill(node)

    def mark_test_pending(self, item: str) -> None:
        self._put_back(self._tests.index(item))
        self._fill_all()

    def remove_node(self, node: Any) -> str | None:
        """Takes back the tests of a worker that ended; returns the one that it ran, or None."""
        self._collected.pop(node, None)
        tests = self._given.pop(node)
        for index in tests[1:]:
            self._put_back(index)
        self._fill_all()
        return self._tests[tests[0]] if tests else None

    def _fill_all(self, most: int = _AHEAD) -> None:
        for node in self.nodes:
            self._fill(node, most)

    def _fill(self, node: Any, most: int = _AHEAD) -> None:
        """Gives a worker tests until it has so many; it ends if there are too few for it."""
        if node.shutting_down or node not in self._collected or not self._tests:
            return
        has = self._given[node]
        while len(has) < most and (index := self._next_for(node)) is not None:
            has.append(index)
            node.send_runtest_some([index])
        if len(has) < most:
            node.shutdown()

    def _put_back(self, index: int) -> None:
        recorded, nodeid = self._workers.recorded, self._tests[index]
        kind = (recorded.cards.get(nodeid, ()), recorded.data.get(nodeid))
        insort(self._left.setdefault(kind, []), index)

    def _next_for(self, node: Any) -> int | None:
        """Takes the test that a worker should run next; returns None if there is none for it."""
        card, in_use, last = self._workers.card_of(node), self._workers.in_use, self._last.get(node)
        others = {self._last.get(other) for other in self.nodes if other is not node}
        candidates = []
        for (cards, data), tests in self._left.items():
            recorded = [on for on in cards if on in in_use]
            if tests and (card in recorded or not recorded):
                wishes = (not recorded, data != last, data in others)
                candidates.append((*wishes, tests[0], tests, data))
        if not candidates:
            return None
        *_, tests, self._last[node] = min(candidates, key=lambda candidate: candidate[:4])
        return tests.pop(0)

    def _report_difference(self, one: Any, other: Any) -> None:
        """Has pytest report that two workers found other tests, as xdist does; then no test runs."""
        from xdist.report import report_collection_diff

        ids = one.gateway.id, other.gateway.id
        text = report_collection_diff(self._collected[one], self._collected[other], *ids)
        report = pytest.CollectReport(ids[1], "failed", text, [])
        self._config.hook.pytest_collectreport(report=report)
