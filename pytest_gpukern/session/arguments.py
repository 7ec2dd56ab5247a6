"""Picks the arguments of a run that a child session gets: all but what reports, records or ends it.

pytest's registered options, of any plugin or conftest, say which values belong to an option. We do not guess
from how an argument looks.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pytest

from pytest_gpukern.processes.sessions import ChildSessions
from pytest_gpukern.values.options import OPTIONS, Option

MEASURING = ("code", "all", "timer", "cache", "scope", "backend", "size", "axis", "simulator")
"""Our options that say how to measure: a child measures as its parent does. It gets the device by UUID and
the seed by number instead, and it neither judges nor writes."""

_RERUNNING = ("--reruns", "--only-rerun", "--rerun-except", "--retries", "--force-flaky")
"""Options of pytest-rerunfailures, pytest-retry and flaky."""
_DROPPED_PREFIXES = (
    *("--report-log", "--json-report", "--md-report", "--allure", "--log-file", "--log-cli", "--instafail"),
    "--cov-",
    *("--benchmark-autosave", "--benchmark-save", "--benchmark-json", "--benchmark-compare"),
    *("--benchmark-histogram", "--benchmark-cprofile"),
    *("--stepwise", "--cache-", *_RERUNNING),
)
_DROPPED = frozenset(
    (
        # reports
        *("--verbose", "--quiet", "--verbosity", "--no-header", "--no-summary", "--no-fold-skipped", "-r"),
        *("--force-short-summary", "--disable-warnings", "--tb", "--show-capture", "--full-trace", "--color"),
        *("--code-highlight", "--pastebin", "--xfail-tb", "--showlocals", "--no-showlocals", "--debug"),
        *("--trace-config", "--durations", "--durations-min", "--junitxml", "--junit-xml", "--junitprefix"),
        *("--junit-prefix", "--html", "--self-contained-html", "--css"),
        # coverage
        *("--cov", "--no-cov"),
        # xdist
        *("-n", "--numprocesses", "--maxprocesses", "--max-worker-restart", "--dist", "--tx", "--px", "-d"),
        *("--loadscope-reorder", "--no-loadscope-reorder", "--rsyncdir", "--rsyncignore", "--testrunuid"),
        *("--maxschedchunk", "--looponfail", "--boxed"),
        # selecting by an earlier run and stopping: the node ids decide, and each test runs
        *("--last-failed", "--failed-first", "--new-first", "--last-failed-no-failures"),
        *("--exitfirst", "--maxfail"),
        # listing tests instead of running them, or waiting for a person
        *("--collect-only", "--pdb", "--pdbcls", "--trace", "--setup-only", "--setup-plan", "--setup-show"),
        *("--fixtures", "--fixtures-per-test", "--markers", "--help", "--version"),
        "--basetemp",  # pytest empties this folder
    )
)
_SPLITTING = ("--splits", "--group", "--splitting-algorithm", "--store-durations", "--durations-path")
"""pytest-split's options: the parent has already chosen its part. Other plugins may have a `--group` too."""
_OF_A_TEST = (
    *("--verbose", "--quiet", "--verbosity", "--tb", "--full-trace", "--showlocals", "--no-showlocals"),
    *(*_RERUNNING, "--benchmark-cprofile"),
)
"""What begins the names of options that shape a test's report, repeat or profile it. The measuring process
gets them."""
_NOT_TWICE = ("device", "seed", "isolate", "against", "against-setup")
"""Our options that have no more effect once a run has begun."""


class KnownOption(NamedTuple):
    """Holds an option as it was registered: its names, and `argparse`'s number of values."""

    names: tuple[str, ...]
    nargs: Any


class Token(NamedTuple):
    """Holds one use of an option on a command line, with its values as they were written."""

    option: KnownOption
    name: str
    values: tuple[str, ...]

    @property
    def written(self) -> list[str]:
        """Returns it as arguments; a single value is joined to its option, since it may begin with a dash."""
        if len(self.values) != 1 or self.option.nargs not in (None, "?"):
            return [self.name, *self.values]
        return [f"{self.name}={self.values[0]}" if self.name.startswith("--") else self.name + self.values[0]]


_MAY_BE_BLOCKED = ("cacheprovider", "terminal", "tmpdir")
"""Plugins of pytest whose options a child is given, unless `-p no:` blocks them."""


def sessions_of(
    config: pytest.Config,
    *,
    device: str | None,
    seed: int | None,
    environ: Mapping[str, str] = os.environ,
) -> ChildSessions:
    """Returns what starts processes that run a configured run's tests, on the device with this UUID.

    Their arguments include those of `addopts`, so that is emptied for the child, like our ini values that a
    child must not heed. Plugins that were given as objects stay behind.

    The run's measuring process judges and shapes reports as the run was asked to. Others do neither.
    """
    given = [
        *config.getini("addopts"),
        *shlex.split(environ.get("PYTEST_ADDOPTS", "")),
        *config.invocation_params.args,
    ]
    known = known_options(config)
    tokens, positional = tokenized(given, known)
    dropped = _SPLITTING if any("--splits" in option.names for option in known) else ()
    named = [f"-p{plugin}" for plugin in config.invocation_params.plugins or () if isinstance(plugin, str)]
    # All processes have the ids of this one, whatever ini files a base's tree has. Relative to their folder,
    # since pytest takes a $ in it for a variable.
    root = f"--rootdir={os.path.relpath(config.rootpath, config.invocation_params.dir)}"
    ours = [root, "--gpukern-isolate=off", "-oaddopts="]
    if seed is not None:  # a number, also where the run was given `random`
        ours.append(f"--gpukern-seed={seed}")
    if not config.pluginmanager.is_blocked("logging"):
        ours.append("-olog_file=")
    folder = config.invocation_params.dir

    def options(*, judges: bool) -> tuple[str, ...]:
        kept = [
            argument
            for token in tokens
            if is_for_children(token.option, judges=judges) and token.name not in dropped
            for argument in token.written
        ]
        emptied = [f"-o{option.ini}=" for option in _unheeded(judges=judges)]
        return (*kept, *named, *([] if judges else ["--gpukern-baseline=off"]), *ours, *emptied)

    return ChildSessions(
        options(judges=False),
        options(judges=True),
        tuple(positional),
        str(folder),
        tuple(str(folder / entry) for entry in sys.path),
        tuple(name for name in _MAY_BE_BLOCKED if config.pluginmanager.is_blocked(name)),
        device,
    )


def known_options(config: pytest.Config) -> list[KnownOption]:
    """Returns every option that pytest's own parser has, from whatever plugin or conftest."""
    actions = config._parser.optparser._actions
    return [KnownOption(tuple(of.option_strings), of.nargs) for of in actions if of.option_strings]


def tokenized(arguments: Sequence[str], options: Iterable[KnownOption]) -> tuple[list[Token], list[str]]:
    """Splits arguments into uses of options, and paths and tests; ValueError if an option lacks its value."""
    parser = _Quiet(add_help=False, allow_abbrev=False, fromfile_prefix_chars="@")
    for option in options:
        parser.add_argument(*option.names, nargs=option.nargs, action=_Note, dest="tokens")
    read, positional = parser.parse_known_args(list(arguments), argparse.Namespace(tokens=[]))
    return read.tokens, positional


def is_for_children(option: KnownOption, *, judges: bool = False) -> bool:
    if judges and any(name.startswith(_OF_A_TEST) for name in option.names):
        return True
    unheeded = {of.cli for of in _unheeded(judges=judges)}
    return not any(
        name in _DROPPED or name in unheeded or name.startswith(_DROPPED_PREFIXES) for name in option.names
    )


def _unheeded(*, judges: bool) -> list[Option]:
    return [of for of in OPTIONS if (of.name in _NOT_TWICE if judges else of.name not in MEASURING)]


class _Quiet(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class _Note(argparse.Action):
    """Notes a use of its option among those of the others, in their order."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        written = () if values is None else (values,) if isinstance(values, str) else tuple(values)
        option = KnownOption(tuple(self.option_strings), self.nargs)
        namespace.tokens.append(Token(option, option_string, written))
