"""Tells GitHub Actions what a run found: a summary of the step, and an annotation for each failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_gpukern.report.conclusion import cards
from pytest_gpukern.report.markdown import summary
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.untrusted_json import FileError, bounded, printable

LONGEST_SUMMARY = 2**20
"""Bytes that GitHub takes as the summary of a step; it drops a longer one whole."""
_MOST_ANNOTATIONS = 10
"""GitHub shows ten errors of a step."""
_LONGEST_TITLE, _LONGEST_MESSAGE = 200, 2000


def write(report: RunResults, config: pytest.Config) -> None:
    """Prints annotations, and appends a summary to the file that GitHub names.

    Raises:
        FileError: the file of the summary cannot be written.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("GITHUB_ACTIONS") == "true" and reporter is not None:
        if reporter._tw.width_of_current_line:  # GitHub reads a command at the start of a line only
            reporter.write_line("")
        root = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
        for line in errors(report, root):
            reporter.write_line(line)
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    if named:
        path = Path(named)
        try:
            with path.open("ab") as file:  # what earlier commands of the step wrote stays
                file.write(summary(report, most=LONGEST_SUMMARY - 1 - file.tell()).encode())
        except OSError as error:
            remedy = "Unset GITHUB_STEP_SUMMARY, or name a file that can be written"
            raise FileError(path, f"cannot be written: {error.strerror or error}", remedy) from error


def errors(run: RunResults, root: Path) -> list[str]:
    """Returns a workflow command for each failure, at most ten, the worst first.

    A place outside of `root`, the folder of the repository's checkout, is left out.
    """
    lines = []
    for card in cards(run)[:_MOST_ANNOTATIONS]:
        what = {"title": bounded(f"{card.kind} {card.title}", _LONGEST_TITLE)}
        file, line = run.places.get(card.nodeids[0], ("", 0))
        if file and Path(file).is_relative_to(root):
            what = {"file": Path(file).relative_to(root).as_posix(), "line": str(line), **what}
        escaped = {name: _data(value).replace(":", "%3A").replace(",", "%2C") for name, value in what.items()}
        properties = ",".join(f"{name}={value}" for name, value in escaped.items())
        texts = [text[:1].lower() + text[1:] for text in (*card.since, ", ".join(card.why)) if text]
        message = bounded("; ".join([card.headline, *texts]), _LONGEST_MESSAGE)
        lines.append(f"::error {properties}::{_data(message)}")
    return lines


def _data(text: str) -> str:
    """Escapes a message as GitHub's own `@actions/core` does, so that it ends where it should.

    Control characters, ends of lines among them, are spelt out before.
    """
    return printable(text).replace("%", "%25")
