"""Finds what else lets more pass than at the base, besides weaker checks of a test: options and records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from _pytest.config.findpaths import locate_config

from pytest_gpukern.baseline import codec
from pytest_gpukern.baseline.record import Baseline, Record, only
from pytest_gpukern.report.units import SHOWN, named
from pytest_gpukern.revisions.git import Revisions, run
from pytest_gpukern.values.failure_table import NOTHING
from pytest_gpukern.values.options import DEFAULT_THRESHOLD, parse_threshold
from pytest_gpukern.values.untrusted_json import FileError

_FAIL_ON, _THRESHOLD, _ADDED = "gpukern_fail_on", "gpukern_threshold", "addopts"
_NAMES = ("baseline", "baseline_dir", "scope", "timer", "cache", "axis", "sanitize", "isolate", "seed")
_OTHERS = tuple(f"gpukern_{name}" for name in _NAMES)
"""What decides what is checked, and what times are compared with. By others, as `backend`, tests are gone."""
_FILTERS = "filterwarnings"
_STRICT = ("xfail_strict", "strict_xfail", "strict")
"""pytest's names for one thing: a test that is expected to fail, and passes, fails."""
_TRUE = ("1", "true", "yes", "on", "y", "t")
_SHOWN_ONLY = re.compile(
    r"(?<!\S)(-[vql]+|-r ?\w+|--(verbose|quiet|(no-)?showlocals|no-header|no-summary)"
    r"|--(color|tb|durations|durations-min|verbosity|show-capture)[= ]\S+)(?!\S)"
)
"""What `addopts` may hold without a say in what fails."""


def weaker_options(root: Path, revisions: Revisions, worktree: Path) -> Iterator[str]:
    """Yields which values of the root folder's ini file let more pass than the base's, or may do so."""
    if not root.is_relative_to(revisions.top):
        return
    base, head = ini_of(worktree / root.relative_to(revisions.top)), ini_of(root)
    strict = any(head.get(name, "").lower() in _TRUE for name in _STRICT)
    for name in (_FAIL_ON, _THRESHOLD, _ADDED, *_OTHERS, _FILTERS, *(() if strict else _STRICT)):
        was, now = base.get(name, ""), head.get(name, "")
        if now != was and _lets_more_pass(name, was, now):
            was, now = (" ".join(text.split()) or "nothing" for text in (was, now))
            yield f"{name} = {was} → {now}"


def ini_of(folder: Path) -> dict[str, str]:
    """Returns what the file says that pytest reads for a folder, as texts.

    Sessions of the base cannot tell: they are given what this run has read.
    """
    texts = {name: of.value for name, of in locate_config(folder, [folder])[2].items()}
    return {name: "\n".join(of) if isinstance(of, list) else str(of) for name, of in texts.items()}


def _lets_more_pass(name: str, was: str, now: str) -> bool:
    if name == _ADDED:
        was, now = (_SHOWN_ONLY.sub(" ", " ".join(text.split())) for text in (was, now))
        return {*was.split()} != {*now.split()}
    if name == _THRESHOLD:
        least = [parse_threshold(text, name) if text else DEFAULT_THRESHOLD for text in (was, now)]
        return least[1] > least[0]
    if name == _FAIL_ON:
        before, after = ({*text.replace(",", " ").split()} for text in (was, now))
        return bool(before - after - {NOTHING}) or NOTHING in after - before
    if name == _FILTERS:
        return any(line.partition(":")[0].strip() == "error" for line in was.splitlines())
    return name not in _STRICT or was.lower() in _TRUE


def weaker_records(revisions: Revisions, worktree: Path) -> Iterator[str]:
    """Yields which records of the base have sessions that were changed or taken out.

    No command does that, but for epochs between the first and the newest: an update opens a new one.
    """
    listed = ["diff", "-z", "--name-only", "--no-renames", "--diff-filter=MD"]
    changed = run([*listed, revisions.base, "--", "*.json"], revisions.top)
    for path in filter(None, changed.split("\0")):
        with suppress(FileError):  # no record
            before, after = codec.load(worktree / path), Baseline("", "")
            with suppress(FileError):  # deleted, or damaged
                after = codec.load(revisions.top / path)
            cases = [name for name, record in before.cases.items() if _lost(record, after.of(name))]
            if cases:
                yield f"{path}: sessions on record were changed or taken out: {named(cases, SHOWN)}"


def _lost(before: Record, after: Record) -> bool:
    held = {(of.session, of.recorded): of for of in after.sessions}
    for was in before.sessions:
        now = held.get((was.session, was.recorded), was)
        both = {of.key for of in was.measurements} & {of.key for of in now.measurements}
        if only(was, both) != only(now, both):
            return True
    newest, opened = before.epochs[-1], [of.opened for of in after.epochs]
    if not {before.epochs[0].opened, newest.opened} <= {*opened}:
        return True
    kept = after.epochs[opened.index(newest.opened)]
    return any(len(kept.holding(key)) < len(newest.holding(key)) for key in newest.keys)
