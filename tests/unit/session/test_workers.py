"""Checks which worker of xdist runs which test; a simulated xdist plays the workers, with any crashes."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpukern.session import workers
from pytest_gpukern.session.workers import CardScheduling, OnRecord


class Node:
    """A worker on a GPU, with the tests that it was given and has not run."""

    def __init__(self, run, card):
        self.run, self.card, self.gateway = run, card, SimpleNamespace(id=f"gw{card}")
        self.has, self.shutting_down, self.collects = [], False, run.tests

    def send_runtest_some(self, indices):
        for index in indices:
            self.run.check(self, index)
        self.has += indices

    def shutdown(self):
        self.shutting_down = True


class Simulated:
    """A run of xdist's controller; `cards` and `data` are each test's."""

    def __init__(self, gpus, cards, data=()):
        self.tests = [f"t{number}" for number in range(len(cards))]
        named = [(test, tuple(on)) for test, on in zip(self.tests, cards, strict=True) if on]
        self.recorded = OnRecord(dict(named), dict(zip(self.tests, data, strict=False)))
        self.count, self.nodes = len(gpus), [Node(self, card) for card in gpus]
        self.left, self.ran, self.reported = set(self.tests), [], []
        hook = SimpleNamespace(pytest_collectreport=lambda report: self.reported.append(report))
        self.sched = CardScheduling(SimpleNamespace(hook=hook), self)
        self.begun = self.ends = False

    # what the scheduler asks of `Workers`

    @property
    def in_use(self):
        return [node.card for node in self.nodes if not node.shutting_down]

    def card_of(self, node):
        return node.card

    def check(self, node, index):
        """A test goes to the GPU that it was recorded on; others wait until there are none for this GPU."""
        test, cards = self.tests[index], self.recorded.cards
        here = {test for test in self.left if node.card in cards.get(test, ())}
        assert test in here if here else not set(cards.get(test, ())).intersection(self.in_use)
        alike = [one for one in self.left if self.kind(one) == self.kind(test)]
        assert test == min(alike), "tests of one kind stay in their order"
        assert node.collects == self.tests
        assert not node.shutting_down
        self.left.remove(test)

    def kind(self, test):
        return self.recorded.cards.get(test), self.recorded.data.get(test)

    # what happens

    def may_happen(self):
        for node in self.nodes:
            if node not in self.sched.nodes:
                yield self.is_ready, node
            elif not hasattr(node, "collected") and not self.ends:
                yield self.collects, node
            if len(node.has) > 1 or (node.has and node.shutting_down):
                yield self.completes, node
            if not node.has and node.shutting_down and node in self.sched.nodes:
                yield self.finishes, node

    def happens(self, event, node):
        event(node)
        if self.sched.tests_finished:
            self.ends = True
            for one in self.sched.nodes:
                one.shutdown()

    def begins(self, *nodes):
        for event in (self.is_ready, self.collects):
            for node in nodes or self.nodes:
                self.happens(event, node)

    def is_ready(self, node):
        if self.ends:
            self.nodes.remove(node)
        else:
            self.sched.add_node(node)

    def collects(self, node):
        node.collected = True
        self.sched.add_node_collection(node, node.collects)
        if self.sched.collection_is_completed:
            assert self.begun or all(hasattr(node, "collected") for node in self.nodes)
            self.begun = True
            self.sched.schedule()

    def completes(self, node):
        self.ran.append(self.tests[node.has[0]])
        self.sched.mark_test_complete(node, node.has.pop(0))

    def finishes(self, node):
        self.nodes.remove(node)
        assert self.sched.remove_node(node) is None

    def crashes(self, node, *, again):
        """It is replaced on its GPU; a plugin may ask for its test again, as pytest-rerunfailures does."""
        self.nodes.remove(node)
        self.left |= {self.tests[index] for index in node.has[1:]}
        if node in self.sched.nodes:
            crashed = self.sched.remove_node(node)
            assert crashed == (self.tests[node.has[0]] if node.has else None)
            if again and crashed is not None:
                self.left.add(crashed)
                self.sched.mark_test_pending(crashed)
            else:
                self.ran += [crashed] if crashed is not None else []
        self.ends = False
        self.nodes.append(Node(self, node.card))


CARDS = "ABC"


@given(data=st.data())
@pytest.mark.parametrize("finds_others", [False, True])
def test_every_test_runs_once_on_a_gpu_that_it_was_recorded_on_whichever_worker_crashes(data, finds_others):
    gpus = CARDS[: data.draw(st.integers(1, 3), label="workers")]
    recorded = st.sets(st.sampled_from(CARDS + "x"), max_size=2).map(sorted)
    tests = data.draw(st.lists(st.tuples(recorded, st.sampled_from("pqr")), min_size=1, max_size=9))
    run = Simulated(gpus, *zip(*tests, strict=True))
    crashes = data.draw(st.integers(1 if finds_others else 0, 3), label="crashes")
    while possible := list(run.may_happen()):
        if crashes and data.draw(st.booleans()):
            crashes -= 1
            crash = functools.partial(run.crashes, again=data.draw(st.booleans()))
            run.happens(crash, data.draw(st.sampled_from(run.nodes)))
            if finds_others and run.begun:
                run.nodes[-1].collects = [*run.tests, "another"]
        else:
            run.happens(*data.draw(st.sampled_from(possible)))
    assert (run.nodes, run.ends) == ([], True)
    assert len(set(run.ran)) == len(run.ran)
    assert finds_others or set(run.ran) == set(run.tests)


@pytest.mark.parametrize(
    ("cards", "data", "given_first"),
    [
        (["", ""], "pq", {"A": [0], "B": [1]}),
        (["B", "A", "", "", ""], "pqrst", {"A": [1, 2], "B": [0, 3]}),
        (["B", "B"], "pq", {"A": [], "B": [0, 1]}),
        (["x", "AB", "B"], "pqr", {"A": [1, 0], "B": [2]}),
        (["", "", "", "", ""], "ppqqr", {"A": [0, 1], "B": [2, 3]}),
        (["", "B", "", ""], "pppr", {"A": [0, 2], "B": [1, 3]}),
        (["x", "", "x", ""], "", {"A": [0, 2], "B": [1, 3]}),
    ],
)
def test_workers_first_take_what_was_recorded_on_their_gpu_then_the_data_that_they_have(
    cards, data, given_first
):
    run = Simulated("AB", cards, data)
    run.begins()
    assert {node.card: node.has for node in run.nodes} == given_first
    assert all(node.shutting_down == (len(node.has) < 2) for node in run.nodes), "they wait for no more"


def test_what_an_ended_worker_had_not_begun_comes_before_the_tests_behind_it():
    run = Simulated("AB", [""] * 6)
    run.begins()
    ended, _ = run.nodes
    (_, next_of_ended) = ended.has
    run.crashes(ended, again=False)
    run.begins(run.nodes[-1])
    assert run.nodes[-1].has[0] == next_of_ended


def test_no_test_runs_if_workers_found_others_from_the_start():
    run = Simulated("AB", ["", ""])
    run.nodes[1].collects = ["t0"]
    run.begins()
    assert [node.has for node in run.nodes] == [[], []]
    (report,) = run.reported
    assert "Different tests were collected between gwA and gwB" in report.longrepr


@pytest.mark.parametrize("ended", [(), ("GPU-A",)])
def test_a_worker_that_replaces_another_begins_on_its_gpu_also_where_the_others_end_or_have_ended(
    monkeypatch, request, ended
):
    cards = [SimpleNamespace(uuid=uuid) for uuid in ("GPU-A", "GPU-B")]
    environment = SimpleNamespace(gpu=SimpleNamespace(cards=cards), settings=SimpleNamespace(seed=1))
    monkeypatch.setattr(workers, "environment_of", lambda config: environment)
    monkeypatch.setattr(workers, "device_uuid", lambda config: None)
    monkeypatch.setattr(workers, "sessions_of", lambda config, device, seed: SimpleNamespace(to_json=dict))
    options = {"tx": ["2*popen"], "dist": "load"}
    config = SimpleNamespace(getoption=options.get, add_cleanup=request.addfinalizer)
    plugin = workers.Workers(config)

    def begins():
        gateway = SimpleNamespace(spec=SimpleNamespace(popen=True, env={}))
        node = Mock(gateway=gateway, workerinput={}, shutting_down=False)
        plugin.pytest_configure_node(node)
        return node

    nodes = {plugin.card_of(node): node for node in (begins(), begins())}
    for node in nodes.values():
        node.shutting_down = True
    for card in (*ended, "GPU-B"):
        plugin.pytest_testnodedown(nodes[card])
    assert plugin.card_of(begins()) == "GPU-B"
