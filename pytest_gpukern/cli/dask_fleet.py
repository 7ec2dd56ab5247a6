"""Runs `gpukern validate --dask=SCHEDULER`: the suites on every GPU that workers of a Dask cluster see.

Each card is a task on a worker that sees it, pinned by UUID; a worker has one task at a time. What comes is
judged at once, and a card in doubt is measured again beside a neighbour while others are still at it.

No future is trusted to end: the task of a killed worker stays pending for ever, by the scheduler's default of
`allowed-failures`. A topic tells which workers leave, and another one carries tasks' signs of life.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import importlib.util
import logging
import os
import queue
import secrets
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_gpukern.cli import exits
from pytest_gpukern.findings import fleet
from pytest_gpukern.findings.cards import FRESH_ROUNDS, Card, Session
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.nvml import open_nvml
from pytest_gpukern.gpu.selection import visible_devices
from pytest_gpukern.package import __version__
from pytest_gpukern.processes.process import end_in_words, kill_group, last_lines, started_with_us
from pytest_gpukern.processes.sessions import TIMEOUT_S, environment, seeing
from pytest_gpukern.report import units
from pytest_gpukern.report.fleet import FORMS, Told, rows, terminal
from pytest_gpukern.report.fleet_files import sessions_of, write_run
from pytest_gpukern.values.atomic_file import TemporaryFolder, write_named
from pytest_gpukern.values.untrusted_json import ContentError

_RAN = (0, 1)
"""pytest's statuses of a run to its end."""
_REPORT = "--gpukern-report"
_LOOK_S = 0.5
_SIGN_EVERY_S = 5.0
_HANGS_S = TIMEOUT_S
"""A pytest hangs if it prints nothing for so long: to collect, or to run one test, takes less."""
_NAMED = 5
_SILENT_S = 60.0
"""A worker that gives no sign of life for so long hangs; one that left has so long to come back."""
Command = Callable[[Sequence[str], Sequence[str]], list[str]]
"""Returns the command that runs the suites with options, or only those of their tests."""

# --- on a worker ----------------------------------------------------------------------------------


def look() -> tuple[str, str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Returns what a worker is: host, address of its nanny or its own, GPUs, and why others are left out.

    A GPU is its number in nvidia-smi and its UUID.
    """
    from distributed import get_worker

    worker = get_worker()
    gpus, left_out = list[tuple[str, str]](), list[str]()
    try:
        with open_nvml() as nvml:
            whole = [gpu for gpu in visible_devices(nvml, os.environ) if gpu.mig_profile is None]
            gpus += [(str(gpu.index), gpu.uuid) for gpu in whole]
            if closed := nvml.count() - len(nvml.gpus()):
                left_out.append(f"{closed} GPUs that NVML lists but cannot open: see dmesg for Xid errors")
        if not gpus:
            left_out.append("no whole GPU is visible")
    except (NvmlUnavailable, DeviceError) as error:
        left_out.append(str(error))
    return socket.gethostname(), worker.nanny or worker.address, tuple(gpus), tuple(left_out)


class NoRunError(Exception):
    """Says why a run has no file."""


def measure(command: Command, options: Sequence[str], signs: str, tests: Sequence[str], gpu: str) -> bytes:
    """Runs the suites, or some of their tests, in a process that ends with the worker; returns its file.

    The process sees one GPU, or all that the worker sees if none is named. `signs` is the topic for signs of
    life. Raises NoRunError if pytest does not come to its end, or nobody wants the file any more.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    with TemporaryFolder("fleet") as folder:
        report, log = Path(folder, "run.json"), Path(folder, "output")
        arguments = command([*options, f"{_REPORT}={report}"], tests)
        with log.open("wb") as output:
            process = started_with_us(arguments, environment(seeing(gpu) if gpu else {}), output)
        size, heard_s = -1, time.monotonic()
        try:
            while process.poll() is None:
                worker.log_event(signs, key)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SIGN_EVERY_S)
                if log.stat().st_size != size:
                    size, heard_s = log.stat().st_size, time.monotonic()
                task = worker.state.tasks.get(key)
                if task is None or task.state != "executing":
                    raise NoRunError("nobody wants it any more")
                if time.monotonic() - heard_s > _HANGS_S:
                    raise NoRunError(f"its pytest hung: it printed nothing for {_HANGS_S:g} s")
        finally:
            kill_group(process)
        if process.returncode not in _RAN or not report.exists():
            said = last_lines(log.read_text(encoding="utf-8", errors="replace"))
            raise NoRunError(f"its pytest ended {end_in_words(process.returncode)}: {said}")
        return report.read_bytes()


# --- the cluster ----------------------------------------------------------------------------------

_Event = tuple[str, str, Any]
"""`joined` or `left`, a worker, None; `sign`, a task, when; `value` or `failed`, a task, its value or why."""


class _Cluster:
    """Runs tasks on named workers of a cluster, and tells what becomes of workers and tasks."""

    def __init__(self, scheduler: str) -> None:
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # we say ourselves what is lost
        where = {"scheduler_file" if scheduler.endswith(".json") else "address": scheduler}
        self._client = Client(**where, set_as_default=False)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._futures: dict[str, Any] = {}
        self._dropped = False
        self.signs = f"gpukern-{secrets.token_hex(4)}"
        self._client.subscribe_topic("all", self._hear)
        self._client.subscribe_topic(
            self.signs, lambda event: self._events.put(("sign", event[1], time.monotonic()))
        )
        for worker in self._client.nthreads():
            self._events.put(("joined", worker, None))

    def close(self) -> None:
        self._client.close()

    @property
    def gone(self) -> bool:
        """Whether the scheduler is; a client that connects to it again has lost its tasks and topics."""
        return self._dropped or self._client.status != "running"

    def start(self, worker: str, function: Callable[..., Any], *args: object) -> str:
        """Starts a task, and returns its name."""
        task = f"{self.signs}-{function.__name__}-{secrets.token_hex(4)}"
        never_elsewhere = {"workers": [worker], "allow_other_workers": False, "retries": 0, "pure": False}
        self._futures[task] = self._client.submit(function, *args, key=task, **never_elsewhere)
        self._client.loop.add_callback(self._follow, task, self._futures[task])
        return task

    def forget(self, task: str) -> None:
        """Drops a task, which ends if it is under way."""
        self._futures.pop(task).release()

    def events(self) -> Iterator[_Event]:
        """Yields what has happened, after waiting a little for the first."""
        with contextlib.suppress(queue.Empty):
            yield self._events.get(timeout=_LOOK_S)
            while True:
                yield self._events.get_nowait()

    async def _follow(self, task: str, future: Any) -> None:
        try:
            self._events.put(("value", task, await future))
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            self._dropped = self._dropped or task in self._futures  # not by us
        except NoRunError as error:
            self._events.put(("failed", task, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the worker's Python raised
            self._events.put(("failed", task, f"{type(error).__name__}: {error}"))

    def _hear(self, event: tuple[float, Any]) -> None:
        said = event[1] if isinstance(event[1], dict) else {}
        kind = {"add-worker": "joined", "remove-worker": "left"}.get(said.get("action", ""))
        if kind is not None:
            self._events.put((kind, said["worker"], None))


# --- the validation -------------------------------------------------------------------------------


@dataclass
class _Flight:
    """Holds a task under way; without a card it asks which cards the worker sees."""

    worker: str
    card: Card | None
    began_s: float = field(default_factory=time.monotonic)
    seen_s: float = field(default_factory=time.monotonic)


class _Validation:
    """Has every card measured, and measured again if it is in doubt; `folders` keep each run's file.

    Attributes:
        raising: first sessions, which may raise a suspicion; without times for what was lost.
        confirming: later ones, of cards in doubt and of their neighbours.
    """

    def __init__(
        self, cluster: _Cluster, asked: tuple[Command, list[str]], folders: Sequence[Path], *, needs_gpu: bool
    ) -> None:
        self._cluster, self._asked, self._folders, self._needs_gpu = cluster, asked, folders, needs_gpu
        self._sees: dict[str, tuple[Card, ...]] = {}
        self._flights: dict[str, _Flight] = {}
        self._to_do: dict[Card, int] = {}  # how many sessions are still to begin
        self._unseen_s: dict[Card, float] = {}  # since when no worker sees a card that is still to do
        self._again: dict[Card, tuple[str, ...]] = {}  # in doubt, or a neighbour: tests of further sessions
        self._known: dict[Card, str] = {}  # with its worker's name if it is no GPU
        self._lost: set[Card] = set()
        self.raising: list[Session] = []
        self.confirming: list[Session] = []

    def run(self) -> None:
        """Returns when all is measured or lost."""
        while True:
            came = [self._heed(*event) for event in self._cluster.events()]
            self._give_up()
            if any(came):
                self._doubt()
            self._start()
            if not self._flights and not self._to_do:
                return

    def _start(self) -> None:
        """Gives each worker without a task a card that it sees; those in doubt come first."""
        busy = {flight.worker for flight in self._flights.values()}
        under_way = {flight.card for flight in self._flights.values()}
        for worker, seen in self._sees.items():
            free = [card for card in seen if card in self._to_do and card not in under_way]
            if free and worker not in busy:
                card = min(free, key=lambda card: (card not in self._again, -self._to_do[card]))
                under_way.add(card)
                self._to_do[card] -= 1
                if not self._to_do[card]:
                    del self._to_do[card]
                what = (self._again.get(card, ()), "" if self._known[card] else card.uuid)
                self._fly(worker, card, measure, *self._asked, self._cluster.signs, *what)

    def _fly(self, worker: str, card: Card | None, function: Callable[..., Any], *args: object) -> None:
        self._flights[self._cluster.start(worker, function, *args)] = _Flight(worker, card)

    def _heed(self, kind: str, name: str, value: Any) -> bool:
        """Notes what has happened; returns whether a card has been measured."""
        if kind == "joined" and name not in {*self._sees, *(each.worker for each in self._flights.values())}:
            self._fly(name, None, look)
        elif kind == "left":
            self._do_without(name, "its worker left")
        elif kind == "sign" and name in self._flights:
            self._flights[name].seen_s = value
        elif kind in ("value", "failed") and name in self._flights:
            flight = self._flights.pop(name)
            self._cluster.forget(name)
            if kind == "failed":
                self._lose(flight.card or Card(flight.worker, flight.worker, "?"), value)
            elif flight.card is None:
                self._note_cards(flight.worker, *value)
            else:
                return self._note_run(flight.card, value, time.monotonic() - flight.began_s)
        return False

    def _note_cards(
        self, worker: str, host: str, name: str, gpus: Sequence[tuple[str, str]], left_out: Sequence[str]
    ) -> None:
        told = [Card(uuid, host, index) for index, uuid in gpus]
        if told or self._needs_gpu:
            for why in left_out:
                self._lose(Card(worker, host, "?"), why)
        else:
            number = sum(card.host == host for card in self._known)
            told = [card for card, unpinned in self._known.items() if unpinned == name]
            told = told or [Card(f"{host}-{number}", host, str(number))]
        self._sees[worker] = tuple(told)
        for card in told:
            if card not in self._known:
                self._known[card] = "" if gpus else name
                self._to_do[card] = 1

    def _note_run(self, card: Card, content: bytes, spent_s: float) -> bool:
        for folder in self._folders:
            write_run(folder, card.host, card.index, content)
        try:
            sessions = sessions_of(content, card.host, card.index)
        except ContentError as error:
            self._lose(card, f"its file cannot be read: {error}")
            return False
        others = [str(session.card) for session in sessions if session.card != card]
        if others or not sessions:
            self._lose(card, f"its process measured {', '.join(others) or 'nothing'}")
            return False
        again = card in self._again
        (self.confirming if again else self.raising).extend(sessions)
        cases = {kernel.rpartition(" ")[0] for session in sessions for kernel in session.kernels}
        self._say(f"{card}{' again' * again}: {units.counted(len(cases), 'case')}, {spent_s:.0f} s")
        return True

    def _doubt(self) -> None:
        """Has cards that look slow by now, or compute other bits, measured again beside a neighbour."""
        found = fleet.judged(self.raising)
        doubtful: dict[Card, Card | None] = dict.fromkeys((each.card for each in found.corrupt), None)
        doubtful |= {card: again.beside for card, again in fleet.to_confirm(found).items()}
        chosen = fleet.to_measure_again(self.raising).keys()
        cases = {output.partition(" ")[0] for each in found.corrupt for output in each.outputs}
        tests = {
            kernel.test: None
            for session in self.raising
            for name, kernel in session.kernels.items()
            if name in chosen or name.partition(" ")[0] in cases
        }
        for card, beside in doubtful.items():
            if card not in self._again and card not in self._lost:
                self._say(f"{card} is in doubt, and measured again{f' beside {beside}' if beside else ''}")
                for each in (card, beside):
                    if each is not None and each not in {*self._again, *self._lost}:
                        self._again[each], self._to_do[each] = tuple(tests), FRESH_ROUNDS

    def _do_without(self, worker: str, why: str) -> None:
        self._sees.pop(worker, None)
        for task, flight in list(self._flights.items()):
            if flight.worker == worker:
                del self._flights[task]
                self._cluster.forget(task)
                self._lose(flight.card or Card(worker, worker, "?"), why)

    def _give_up(self) -> None:
        """Loses what gives no sign of life, and cards whose workers left and do not come back."""
        now_s, gone = time.monotonic(), "the scheduler is gone" if self._cluster.gone else ""
        silent = f"its worker gave no sign of life for {_SILENT_S:g} s: it hangs, or runs other tasks"
        for flight in list(self._flights.values()):
            if gone or now_s - flight.seen_s > _SILENT_S:
                self._do_without(flight.worker, gone or silent)
        seen = {card for of_worker in self._sees.values() for card in of_worker if not gone}
        self._unseen_s = {card: self._unseen_s.get(card, now_s) for card in self._to_do if card not in seen}
        for card, since_s in self._unseen_s.items():
            if gone or now_s - since_s > _SILENT_S:
                self._lose(card, gone or "its worker left before, and none that sees it came")

    def _lose(self, card: Card, why: str) -> None:
        self._lost.add(card)
        self._to_do.pop(card, None)
        self.raising.append(Session(card, "", datetime.now(UTC), problems=(why,)))
        self._say(f"{card} is lost: {why}")

    def _say(self, text: str) -> None:
        ended = len({session.card for session in self.raising} & self._known.keys())
        exits.show([f"gpukern validate --dask: {ended} of {units.counted(len(self._known), 'card')}, {text}"])


# --- the command ----------------------------------------------------------------------------------


def validate_on_dask(
    scheduler: str, options: Sequence[str], command: Command, folders: Sequence[Path], *, needs_gpu: bool
) -> int:
    """Validates all GPUs that the workers of a cluster see; returns the exit status.

    Args:
        scheduler: address, or the scheduler's file, whose name ends in `.json`.
        options: of pytest.
        folders: keep each run's file.
        needs_gpu: whether a worker without a GPU is lost; else it runs what a host and a simulator can.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--gpukern-report", action="append", default=[], type=Path)
    parser.add_argument("--gpukern-device")
    parser.add_argument("--gpukern-baseline", default="compare")
    in_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    given, others = parser.parse_known_args([*in_environment, *options])
    problem = None
    if given.gpukern_device is not None:
        problem = f"--gpukern-device={given.gpukern_device} leaves one GPU; drop it"
    elif given.gpukern_baseline not in ("compare", "off"):
        problem = f"--gpukern-baseline={given.gpukern_baseline} would write on workers; record on one host"
    elif unknown := [path for path in given.gpukern_report if path.suffix not in FORMS]:
        problem = f"{_REPORT}={unknown[0]} is neither a folder (end it in /) nor of {', '.join(FORMS)}"
    elif importlib.util.find_spec("distributed") is None:
        problem = "Dask is not installed: pip install 'pytest-gpukern[fleet]'"
    if problem is not None:
        raise exits.RefusedError(problem, 4)  # pytest's own status for a usage error
    asked = (command, [*others, f"--gpukern-baseline={given.gpukern_baseline}"])
    try:
        if scheduler.endswith(".json") and not Path(scheduler).exists():  # Dask would wait for the file
            raise FileNotFoundError("the file is missing")
        cluster = _Cluster(scheduler)
    except (OSError, ValueError) as error:
        raise exits.RefusedError(f"there is no scheduler at {scheduler}: {error}") from error
    with contextlib.closing(cluster):
        validation = _Validation(cluster, asked, folders, needs_gpu=needs_gpu)
        try:
            validation.run()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    if not validation.raising:
        raise exits.RefusedError(f"the scheduler at {scheduler} has no workers")
    found = fleet.judged(validation.raising, validation.confirming, expected=())
    told = Told(found, rows(found))
    for path in given.gpukern_report:
        write_named(path, FORMS[path.suffix](told), _REPORT)
    exits.show([*terminal(told, exits.width()), *_other_versions(validation.raising)])
    return exits.BAD if found.bad else exits.FINE


def _other_versions(sessions: Iterable[Session]) -> Iterator[str]:
    """Yields what cards, or this client, have in another version than most cards."""
    on: dict[str, dict[str, set[str]]] = {"pytest-gpukern": {__version__: {"this client"}}}
    for card in (session.card for session in sessions if session.card.model):
        for name, version in (("driver", card.driver or "unknown"), *card.libraries):
            on.setdefault(name, {}).setdefault(version, set()).add(str(card))
    for name, versions in on.items():
        usual = max(sorted(versions), key=lambda version: len(versions[version]))
        for version in sorted(versions.keys() - {usual}):
            where = sorted(versions[version])
            more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
            yield f"{name} {version} on {', '.join(where[:_NAMED])}{more}; most have {usual}"
