"""Picks the arguments of a run that a child session gets: all but what reports, selects or records.

Which values belong to an option is known from the options that pytest has registered, of whatever plugin or
conftest. Nothing is guessed from how an argument looks.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pytest_gpukern.values.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pytest

MEASURING = ("all", "timer", "cache", "scope", "backend", "size", "axis", "seeds", "simulator", "energy")
"""Options of this plugin that say how to measure: a child measures as its parent does. The device is named by
its UUID instead, the seed by its number, and a child neither judges nor writes."""

_OURS = tuple(option.name for option in OPTIONS)
_DROPPED_PREFIXES = (
    *("--report-log", "--json-report", "--md-report", "--allure", "--log-file", "--log-cli", "--instafail"),
    "--cov-",
    *("--benchmark-autosave", "--benchmark-save", "--benchmark-json", "--benchmark-compare"),
    *("--benchmark-histogram", "--benchmark-cprofile"),
    *("--stepwise", "--cache-", "--reruns", "--only-rerun", "--rerun-except"),
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
        # what is selected, and when to stop: the node ids decide, and each test has its turn
        *("-k", "-m", "--deselect", "--ignore", "--ignore-glob", "--last-failed", "--failed-first"),
        *("--new-first", "--last-failed-no-failures", "--exitfirst", "--maxfail"),
        # what looks at tests instead of running them, or waits for somebody
        *("--collect-only", "--pdb", "--pdbcls", "--trace", "--setup-only", "--setup-plan", "--setup-show"),
        *("--fixtures", "--fixtures-per-test", "--markers", "--help", "--version"),
        "--basetemp",  # is emptied by whoever is given it
    )
)
_SPLITTING = ("--splits", "--group", "--splitting-algorithm", "--store-durations", "--durations-path")
"""pytest-split's: the parent's part of a suite has been chosen. Other plugins may have a `--group` too."""
_ASKED_OF_FAILURES = frozenset(
    ("--verbose", "--quiet", "--verbosity", "--tb", "--full-trace", "--showlocals", "--no-showlocals")
)
_OF_A_TEST = ("--reruns", "--only-rerun", "--rerun-except", "--benchmark-cprofile")
"""What repeats or profiles a test, as the process that measures for the run is to do, like what shapes the
report of one."""
_NOT_TWICE = ("device", "seed", "isolate", "against", "against-setup")
"""Options of this plugin that are done with once a run has begun."""
_DROPPED_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"),  # of a git hook
    "PYTEST_ADDOPTS",
    "PYTEST_CURRENT_TEST",
    "PYTEST_XDIST_",
    "COV_CORE_",
    "COVERAGE_PROCESS_",
)


class KnownOption(NamedTuple):
    """Holds an option as it was registered: its names, and `argparse`'s number of values."""

    names: tuple[str, ...]
    nargs: Any


class ChildArguments(NamedTuple):
    """Holds what a child session's pytest is given; paths and tests decide about conftests and ini file."""

    options: tuple[str, ...]
    positional: tuple[str, ...]


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


def child_arguments(
    config: pytest.Config, environ: Mapping[str, str] = os.environ, *, judges: bool = False
) -> ChildArguments:
    """Returns the arguments of a configured run that its child sessions get.

    What `addopts` says is among them, so that it is emptied for the child. Ini values of this plugin that a
    child must not heed are emptied too. Plugins that were given as objects stay behind.

    With `judges`, the child stands in for the run, as the process does that measures for it: it judges and
    shapes reports as the run was asked to. Other children do neither.
    """
    given = [
        *config.getini("addopts"),
        *shlex.split(environ.get("PYTEST_ADDOPTS", "")),
        *config.invocation_params.args,
    ]
    known = known_options(config)
    tokens, positional = tokenized(given, known)
    dropped = _SPLITTING if any("--splits" in option.names for option in known) else ()
    kept = [
        argument
        for token in tokens
        if is_for_children(token.option, judges=judges) and token.name not in dropped
        for argument in token.written
    ]
    named = [f"-p{plugin}" for plugin in config.invocation_params.plugins or () if isinstance(plugin, str)]
    unheeded = [name for name in _OURS if (name in _NOT_TWICE if judges else name not in MEASURING)]
    emptied = [f"-o{option.ini}=" for option in OPTIONS if option.name in unheeded]
    measures_only = [] if judges else ["--gpukern-baseline=off", "--gpukern-gate=off"]
    ours = [*measures_only, "--gpukern-isolate=off", "-oaddopts=", *emptied]
    seed = getattr(config.option, "gpukern_seed", None)
    if seed:  # the number that was drawn, where it was to be random: see `stash.settings_of`
        ours.append(f"--gpukern-seed={seed}")
    if not config.pluginmanager.is_blocked("logging"):
        ours.append("-olog_file=")
    return ChildArguments((*kept, *named, *ours), tuple(positional))


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without what belongs to a process's own pytest, worker or coverage."""
    return {name: value for name, value in environ.items() if not name.startswith(_DROPPED_VARIABLES)}


def known_options(config: pytest.Config) -> list[KnownOption]:
    """Returns every option that pytest's own parser has, from whatever plugin or conftest."""
    parser = config._parser
    options = [option for group in (parser._anonymous, *parser._groups) for option in group.options]
    return [_known(option) for option in dict.fromkeys(options)]


def tokenized(arguments: Sequence[str], options: Iterable[KnownOption]) -> tuple[list[Token], list[str]]:
    """Splits arguments into uses of options, in order, and what belongs to none: paths and names of tests.

    Raises:
        ValueError: an option lacks its value.
    """
    tokens: list[Token] = []
    parser = _Quiet(add_help=False, allow_abbrev=False, fromfile_prefix_chars="@")
    for option in options:
        parser.add_argument(*option.names, nargs=option.nargs, action=_noting(option, tokens))
    _, positional = parser.parse_known_args(list(arguments))
    return tokens, positional


def is_for_children(option: KnownOption, *, judges: bool = False) -> bool:
    """Returns whether a child session gets an option that its parent was given; see `child_arguments`."""
    if judges and (_ASKED_OF_FAILURES.intersection(option.names) or option.names[0].startswith(_OF_A_TEST)):
        return True
    return not any(
        name in _DROPPED or name.startswith(_DROPPED_PREFIXES) or _is_ours_and_dropped(name, judges=judges)
        for name in option.names
    )


def _is_ours_and_dropped(name: str, *, judges: bool) -> bool:
    ours = name.removeprefix("--gpukern-")
    return name.startswith("--gpukern-") and (ours in _NOT_TWICE if judges else ours not in MEASURING)


class _Quiet(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _noting(option: KnownOption, tokens: list[Token]) -> type[argparse.Action]:
    """Returns an action that only notes that its option was used, and with what."""

    class Note(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
            written = () if values is None else (values,) if isinstance(values, str) else tuple(values)
            tokens.append(Token(option, option_string, written))

    return Note


def _known(option: Any) -> KnownOption:
    """Reads an option of pytest's: 8.4 keeps what `add_argument` is to get, later ones what came of that."""
    action = getattr(option, "_action", None)
    if action is None:
        scratch = argparse.ArgumentParser(add_help=False)
        action = scratch.add_argument(*option.names(), **option.attrs())
    return KnownOption(tuple(action.option_strings), action.nargs)
