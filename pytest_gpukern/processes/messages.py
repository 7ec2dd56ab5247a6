"""Names what a process that runs tests and the process that started it tell each other.

msgspec writes them as MessagePack: no test can patch that, as it can patch `json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union, get_args

import msgspec

from pytest_gpukern.values.result import JsonDict


class Message(msgspec.Struct, frozen=True, tag=True):
    """Holds one message."""


# to the process that runs tests


class Import(Message, frozen=True):
    """Asks a process that waits for `Begin` to import a module, which must leave CUDA alone."""

    module: str


class ChildRequest(msgspec.Struct, frozen=True):
    """Says what a process is to run, where and how.

    Attributes:
        nodeids: pytest's names of the tests; empty for all that the command line names.
        moved: folder of the parent's tree → the same folder in another tree, for arguments, `sys.path`,
            `PYTHONPATH` and the working folder.
        environ: additional environment variables; None for one that the process must not have.
        command_prefix: what comes before Python on the command line, such as a tool that watches it.
        collects_all: whether to collect all that the command line names, and to list the unwanted tests.
        checked: tests that an earlier session of the same tree has checked in full, where revisions are
            compared; sessions that confirm or record check in full.
        datasets: folder in which sessions of that tree keep inputs and references for each other.
        asks: whether tests take the fewest samples that tell what they have the device do.
        watched_roots: folders; the loaded modules below them are listed at the end.
        watched_names: top-level names of modules that are listed wherever they were loaded from.
    """

    nodeids: tuple[str, ...] = ()
    moved: Mapping[str, str] = {}
    environ: Mapping[str, str | None] = {}
    command_prefix: tuple[str, ...] = ()
    collects_all: bool = False
    checked: frozenset[str] = frozenset()
    datasets: str | None = None
    asks: bool = False
    watched_roots: tuple[str, ...] = ()
    watched_names: tuple[str, ...] = ()


class Begin(Message, frozen=True):
    """Says what to collect, and what the process is for.

    Attributes:
        arguments: pytest's.
        path: `sys.path`, so that both processes import the same.
        terminal: file for what pytest itself prints.
        stacks: file for the stacks of all threads.
        environ: variables that come to those which the process was started with.
        children: starts the sessions that confirm, if a verdict may fail a test in this process; as JSON.
        worker: of a worker of xdist, what its tests may ask of it: `workerid` and its like.
    """

    arguments: tuple[str, ...]
    path: tuple[str, ...]
    request: ChildRequest
    terminal: str = ""
    stacks: str = ""
    environ: dict[str, str] = {}
    children: JsonDict | None = None
    worker: JsonDict | None = None


class RunTest(Message, frozen=True):
    """Asks for one test.

    Attributes:
        next_nodeid: the test that follows; fixtures that it needs stay.
        keeps: whether all wider fixtures stay, since the test that follows is not known yet.
    """

    nodeid: str
    next_nodeid: str | None = None
    keeps: bool = False


class End(Message, frozen=True):
    """Asks the process to tear down and to end."""


# from the process that runs tests


class Uncollected(Message, frozen=True):
    """Says why a file could not be collected, or a folder whose conftest fails."""

    nodeid: str
    text: str


class Collected(Message, frozen=True):
    """Says that the process is ready.

    Attributes:
        nodeids: the tests that it has.
        others: this plugin's tests that nobody wanted and that can fail, if it collected all.
        notes: on libraries.
    """

    nodeids: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Begun(Message, frozen=True):
    """Says that the test begins."""


class Reported(Message, frozen=True):
    """Holds one of pytest's reports on the test.

    Attributes:
        data: as pytest makes it serializable. Its `gpukern` is what `session/item.py: attach` put on the
            report: above all the test's `Result`.
        outcome: `passed`, `failed`, `skipped` or `xfailed`.
        text: why it did not pass, in words.
    """

    data: JsonDict
    outcome: str
    text: str


class Warned(Message, frozen=True):
    """Holds a warning of the test; `category` is module and name of its class."""

    category: tuple[str, str]
    text: str
    filename: str
    lineno: int
    nodeid: str
    location: tuple[str, int, str] | None


class Tell(Message, frozen=True):
    """Holds a line for the user."""

    text: str


class Paused(Message, frozen=True):
    """Says that the test waits for something else, such as the device."""


class Resumed(Message, frozen=True):
    """Says that it goes on."""


class Listed(Message, frozen=True):
    """Holds what pytest-benchmark itself measured in the test."""

    entries: list[Any]


class Exit(Message, frozen=True):
    """Says that the test ended the run, by `pytest.exit` or Ctrl-C."""

    text: str
    returncode: int | None
    interrupted: bool


class Done(Message, frozen=True):
    """Says that the test has ended.

    Attributes:
        lost: why another process has to run the next one, or None.
        failed_late: why it failed, in words, if an asynchronous launch did which was found only after its
            last report.
        fail: why the run fails, if the test said so in the session.
        stop: why it stops.
    """

    lost: str | None = None
    failed_late: str | None = None
    fail: str | None = None
    stop: str | None = None


class LoadedModule(NamedTuple):
    """Holds a module that is loaded, with the hash of its file's contents."""

    name: str
    file: str
    sha256: str


class TornDown(Message, frozen=True):
    """Says that fixtures are torn down, and which of the watched modules are loaded."""

    modules: tuple[LoadedModule, ...] = ()


_ToChild = Import | Begin | RunTest | End
_TO_PARENT = tuple(kind for kind in Message.__subclasses__() if kind not in get_args(_ToChild))
FROM_PARENT: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_ToChild)
FROM_CHILD: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Union[_TO_PARENT])  # noqa: UP007


def encoded(message: Message) -> bytes:
    """Returns a message as bytes; what MessagePack does not have in a report becomes text.

    Raises:
        Exception: a value is nested too deep, or its own methods fail.
    """
    try:
        return _ENCODER.encode(message)
    except (OverflowError, UnicodeEncodeError):  # integers of more than 64 bits, halves of surrogate pairs
        return _ENCODER.encode(_writable(msgspec.to_builtins(message, enc_hook=_builtin)))


def _builtin(value: Any) -> Any:
    kind = next((kind for kind in (float, int, str) if isinstance(value, kind)), str)
    return kind(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_builtin)


def _writable(value: Any) -> Any:
    """Returns plain JSON with nothing in it that MessagePack cannot hold."""
    if isinstance(value, dict):
        return {_writable(key): _writable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(part) for part in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
