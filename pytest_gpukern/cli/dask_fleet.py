"""Runs `gpukern validate --dask=SCHEDULER`: the suites on every GPU that workers of a Dask cluster see.

Each card is a task on a worker that sees it, pinned by UUID; a worker has one task at a time. What comes is
judged at once, and a card in doubt is measured again beside a neighbour while others are still at it.

No future is trusted to end: the task of a killed worker stays pending for ever, by the scheduler's default of
`allowed-failures`. A topic tells which workers leave, and another one carries tasks' signs of life.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_gpukern.cli import exits
from pytest_gpukern.cli.suites import (
    REPORT,
    NoRunError,
    UsageError,
    ValidateOptions,
    started,
    visible_gpus,
)
from pytest_gpukern.findings import fleet
from pytest_gpukern.findings.cards import FRESH_ROUNDS, Card, CardFigures
from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.nvml import open_nvml
from pytest_gpukern.package import __version__
from pytest_gpukern.processes.sessions import TIMEOUT_S
from pytest_gpukern.report import units
from pytest_gpukern.report.fleet import FORMS, FleetReport, terminal
from pytest_gpukern.report.fleet_files import figures_of, write_run
from pytest_gpukern.report.run_file import read_run
from pytest_gpukern.values.atomic_file import TemporaryFolder, write_named
from pytest_gpukern.values.untrusted_json import FileError

_LOOK_S = 0.5
_SIGN_EVERY_S = 5.0
_HANGS_S = TIMEOUT_S
"""A pytest hangs if it prints nothing for so long: to collect, or to run one test, takes less."""
_SILENT_S = 60.0
"""A worker that gives no sign of life for so long hangs, which Dask itself notices after five minutes
(`worker-ttl`). One that left has so long to come back."""
_GONE = "the scheduler is gone"

# --- on a worker ----------------------------------------------------------------------------------


def look() -> tuple[str, str, str, list[tuple[str, str]], list[str]]:
    """Returns a worker's version, host, address (or its nanny's), GPUs, and why others are left out.

    A GPU is its number in nvidia-smi and its UUID.
    """
    from distributed import get_worker

    worker = get_worker()
    gpus, left_out = list[tuple[str, str]](), list[str]()
    try:
        with open_nvml() as nvml:
            whole, _, left_out = visible_gpus(nvml)
            gpus = [(str(gpu.index), gpu.uuid) for gpu in whole]
    except (NvmlUnavailable, DeviceError) as error:
        left_out = [str(error)]
    return __version__, socket.gethostname(), worker.nanny or worker.address, gpus, left_out


def measure(options: Sequence[str], signs: str, tests: Sequence[str], gpus: Sequence[str]) -> bytes:
    """Runs the suites, or some of their tests, in a process that ends with the worker; returns its file.

    The process sees these GPUs, or all that the worker sees if none is named. `signs` is the topic for signs
    of life. Raises NoRunError if pytest does not come to its end, or nobody wants the file any more.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    with started(options, tests=tests, gpus=gpus) as run:
        for silent_s in run.looks(_SIGN_EVERY_S):
            worker.log_event(signs, key)
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                raise NoRunError("nobody wants it any more")
            if silent_s > _HANGS_S:
                raise NoRunError(f"its pytest hung: it printed nothing for {_HANGS_S:g} s")
        return run.content()


# --- the cluster ----------------------------------------------------------------------------------


class _Cluster:
    """Calls functions on named workers of a cluster.

    Attributes:
        workers: addresses of the workers that are there, and give signs of life while they work.
        signs: topic for signs of life; a message is the name of a task.
    """

    def __init__(self, client: Any, workers: Iterable[str]) -> None:
        self.workers = dict.fromkeys(workers)
        self.signs = f"gpukern-{secrets.token_hex(4)}"
        self._client, self._heard_s, self._dropped = client, dict[str, float](), False
        client.subscribe_topic("all", self._hear)
        client.subscribe_topic(self.signs, lambda event: self._heard_s.update({event[1]: time.monotonic()}))

    @property
    def gone(self) -> bool:
        """Whether the scheduler is; a client that connects to it again has lost its tasks and topics."""
        return self._dropped or self._client.status != "running"

    async def call(self, worker: str, function: Callable[..., Any], *args: object) -> Any:
        """Returns what a function returns on a worker; raises NoRunError if it does not."""
        task = f"{self.signs}-{function.__name__}-{secrets.token_hex(4)}"
        never_elsewhere = {"workers": [worker], "allow_other_workers": False, "retries": 0, "pure": False}
        future = self._client.submit(function, *args, key=task, **never_elsewhere)
        value = asyncio.ensure_future(future)
        self._heard_s[task] = time.monotonic()
        try:
            while not value.done():
                self._look_after(worker, task)
                await asyncio.wait([value], timeout=_LOOK_S)
            if value.cancelled() or isinstance(value.exception(), concurrent.futures.CancelledError):
                self._dropped = True
                raise NoRunError(_GONE)
            return value.result()
        except NoRunError:
            raise
        except Exception as error:  # whatever the worker's Python raised
            raise NoRunError(f"{type(error).__name__}: {error}") from error
        finally:
            value.cancel()
            future.release()  # which ends the task if it is under way

    def _look_after(self, worker: str, task: str) -> None:
        """Raises NoRunError if a task will not end."""
        if self.gone:
            raise NoRunError(_GONE)
        if worker not in self.workers:
            raise NoRunError("its worker left")
        if time.monotonic() - self._heard_s[task] > _SILENT_S:
            del self.workers[worker]
            silent = f"its worker gave no sign of life for {_SILENT_S:g} s"
            raise NoRunError(f"{silent}: it hangs, or runs other tasks")

    def _hear(self, event: tuple[float, Any]) -> None:
        news = event[1] if isinstance(event[1], dict) else {}
        if news.get("action") == "add-worker":
            self.workers[news["worker"]] = None
        elif news.get("action") == "remove-worker":
            self.workers.pop(news["worker"], None)


# --- the validation -------------------------------------------------------------------------------


@dataclass
class _ToDo:
    """Holds what is left to do for a card.

    Attributes:
        owner: name of the worker, if that has no GPU.
        sessions: how many are still to begin.
        tests: those to measure again, of a card in doubt or of a neighbour.
        seen_s: when a worker that sees the card was last there.
    """

    owner: str
    sessions: int = 1
    under_way: bool = False
    tests: tuple[str, ...] | None = None
    seen_s: float = field(default_factory=time.monotonic)


class _ClusterValidation:
    """Has every card measured, and measured again if it is in doubt.

    Attributes:
        raising: first sessions, which may raise a suspicion; without times for what was lost.
        confirming: later ones, of cards in doubt and of their neighbours.
    """

    def __init__(self, cluster: _Cluster, request: ValidateOptions, *, needs_gpu: bool) -> None:
        self._cluster, self._request, self._needs_gpu = cluster, request, needs_gpu
        self._sees: dict[str, list[Card]] = {}
        self._cards: dict[Card, _ToDo] = {}
        self.raising: list[CardFigures] = []
        self.confirming: list[CardFigures] = []

    async def run(self) -> None:
        """Has each worker do one thing at a time; returns when all is measured or lost."""
        under_way: dict[str, asyncio.Task[None]] = {}
        while True:
            for worker in [worker for worker in self._cluster.workers if worker not in under_way]:
                if (work := self._next(worker)) is not None:
                    under_way[worker] = asyncio.create_task(work)
            if not under_way and not any(to_do.sessions for to_do in self._cards.values()):
                return
            came = len(self.raising)
            if under_way:
                tasks = under_way.values()
                await asyncio.wait(tasks, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            else:  # a card waits for a worker that sees it
                await asyncio.sleep(_LOOK_S)
            for worker in [worker for worker, task in under_way.items() if task.done()]:
                under_way.pop(worker).result()
            self._give_up()
            if len(self.raising) > came:
                self._doubt()

    def _next(self, worker: str) -> Coroutine[Any, Any, None] | None:
        """Returns what a worker is to do: to look for cards, then to measure them, those in doubt first."""
        if worker not in self._sees:
            return self._look(worker)
        to_do = {card: self._cards[card] for card in self._sees[worker]}
        free = [card for card, of in to_do.items() if of.sessions and not of.under_way]
        if not free:
            return None
        card = min(free, key=lambda card: (not to_do[card].tests, -to_do[card].sessions))
        to_do[card].under_way = True
        to_do[card].sessions -= 1
        return self._measure(worker, card)

    async def _look(self, worker: str) -> None:
        """Finds out which cards a worker sees: GPUs, or where none is needed one for what runs without."""
        self._sees[worker] = []
        try:
            version, host, owner, gpus, left_out = await self._cluster.call(worker, look)
        except NoRunError as error:
            self._lose(Card(worker, worker, "?"), str(error))
            return
        if version != __version__:
            self._say(f"{host} has pytest-gpukern {version}, this client {__version__}")
        cards = [Card(uuid, host, index) for index, uuid in gpus]
        if cards or self._needs_gpu:
            for why in left_out:
                self._lose(Card(worker, host, "?"), why)
        else:
            number = sum(card.host == host for card in self._cards)
            cards = [card for card, to_do in self._cards.items() if to_do.owner == owner]
            cards = cards or [Card(f"{host}-{number}", host, str(number))]
        self._sees[worker] = cards
        for card in cards:
            self._cards.setdefault(card, _ToDo("" if gpus else owner))

    async def _measure(self, worker: str, card: Card) -> None:
        """Takes a card's sessions from a worker, and keeps its file."""
        to_do, began_s = self._cards[card], time.monotonic()
        gpus = () if to_do.owner else (card.uuid,)
        what = (self._request.options, self._cluster.signs, to_do.tests or (), gpus)
        try:
            content = await self._cluster.call(worker, measure, *what)
            for folder in self._request.folders:
                write_run(folder, card.host, card.index, content)
            figures = _figures(content, card)
        except NoRunError as error:
            self._lose(card, str(error))
        else:
            (self.raising if to_do.tests is None else self.confirming).extend(figures)
            again = "" if to_do.tests is None else " again"
            cases = {kernel.rpartition(" ")[0] for of in figures for kernel in of.kernels}
            took_s = time.monotonic() - began_s
            self._say(f"{card}{again}: {units.counted(len(cases), 'case')}, {took_s:.0f} s")
        finally:
            to_do.under_way = False

    def _doubt(self) -> None:
        """Has cards that look slow by now, or compute other bits, measured again beside a neighbour."""
        findings = fleet.judged(self.raising)
        bits = [finding for finding in findings.findings if "bits" in finding.what]
        doubtful: dict[Card, Card | None] = {card: None for of in bits for card in of.cards}
        doubtful |= {card: again.neighbour for card, again in fleet.to_confirm(findings).items()}
        cases = {output.partition(" ")[0] for of in bits for output in of.names}
        kernels = (pair for figures in self.raising for pair in figures.kernels.items())
        odd = [kernel.test for name, kernel in kernels if name.partition(" ")[0] in cases]
        tests = sorted({*itertools.chain(*fleet.to_measure_again(self.raising).values()), *odd})
        for card, neighbour in doubtful.items():
            if self._cards[card].tests is None:
                beside = f" beside {neighbour}" if neighbour else ""
                self._say(f"{card} is in doubt, and measured again{beside}")
                for to_do in (self._cards[each] for each in (card, neighbour) if each is not None):
                    if to_do.tests is None:
                        to_do.tests, to_do.sessions = tuple(tests), FRESH_ROUNDS

    def _give_up(self) -> None:
        """Loses cards whose workers left, or hang, and do not come back."""
        now_s, gone = time.monotonic(), self._cluster.gone
        self._sees = {worker: of for worker, of in self._sees.items() if worker in self._cluster.workers}
        for card in (card for cards in self._sees.values() for card in cards):
            self._cards[card].seen_s = now_s
        for card, to_do in self._cards.items():
            unseen = gone or now_s - to_do.seen_s > _SILENT_S
            if to_do.sessions and not to_do.under_way and unseen:
                self._lose(card, _GONE if gone else "its worker left before, and none that sees it came")

    def _lose(self, card: Card, why: str) -> None:
        if card in self._cards:
            self._cards[card].sessions = 0
        self.raising.append(CardFigures(card, "", datetime.now(UTC), problems=(why,)))
        self._say(f"{card} is lost: {why}")

    def _say(self, text: str) -> None:
        ended = len({figures.card for figures in self.raising} & self._cards.keys())
        exits.show([f"gpukern validate --dask: {ended} of {units.counted(len(self._cards), 'card')}, {text}"])


def _figures(content: bytes, card: Card) -> list[CardFigures]:
    """Returns the figures in a card's file; NoRunError if it is damaged, or of another card."""
    with TemporaryFolder("validate") as folder:
        file = Path(folder, "run.json")
        file.write_bytes(content)
        try:
            figures = figures_of(read_run(file), card.host, card.index)
        except FileError as error:
            where = f"{error.where}: " if error.where else ""
            raise NoRunError(f"its file cannot be read: {where}{error.problem}") from error
    if others := [str(of.card) for of in figures if of.card != card]:
        raise NoRunError(f"its process measured {', '.join(others)}")
    return figures


# --- the command ----------------------------------------------------------------------------------


def validate_on_dask(scheduler: str, request: ValidateOptions, *, needs_gpu: bool) -> int:
    """Validates all GPUs that the workers of a cluster see; returns the exit status.

    Args:
        scheduler: address, or the scheduler's file, whose name ends in `.json`.
        needs_gpu: whether a worker without a GPU is lost; else it runs what a host and a simulator can.
    """
    recording = "would write on workers; record on one host"
    request.refuse_unless(("compare", "off"), recording)
    if importlib.util.find_spec("distributed") is None:
        install = "pip install 'pytest-gpukern[fleet]'"
        raise UsageError(f"distributed runs the GPUs, and is not installed: {install}")
    if unknown := [path for path in request.reports if Path(path).suffix not in FORMS]:
        raise UsageError(f"{REPORT}={unknown[0]} is neither a folder (end it in /) nor of {', '.join(FORMS)}")
    done = asyncio.run(_validated(scheduler, request, needs_gpu=needs_gpu))
    if not done.raising:
        raise exits.RefusedError(f"the scheduler at {scheduler} has no workers")
    findings = fleet.judged(done.raising, done.confirming, expected=())
    report = FleetReport(findings)
    for path in map(Path, request.reports):
        write_named(path, FORMS[path.suffix](report), REPORT)
    exits.show(terminal(report, exits.width()))
    return exits.BAD if findings.bad else exits.FINE


async def _validated(scheduler: str, request: ValidateOptions, *, needs_gpu: bool) -> _ClusterValidation:
    from distributed import Client

    for name in ("distributed", "distributed.client"):  # we say ourselves what is lost
        logging.getLogger(name).setLevel(logging.CRITICAL)
    in_file = scheduler.endswith(".json")
    where = {"scheduler_file" if in_file else "address": scheduler}
    try:
        if in_file and not Path(scheduler).exists():  # Dask would wait for the file
            raise FileNotFoundError("the file is missing")
        client = await Client(**where, asynchronous=True, set_as_default=False)
    except (OSError, ValueError) as error:
        raise exits.RefusedError(f"there is no scheduler at {scheduler}: {error}") from error
    try:
        validation = _ClusterValidation(
            _Cluster(client, await client.nthreads()), request, needs_gpu=needs_gpu
        )
        await validation.run()
    finally:
        await client.close()
    return validation
