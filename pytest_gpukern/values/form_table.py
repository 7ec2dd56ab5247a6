"""Holds the table of forms that a report is made in: one row each.

Options, `gpukern report` and the end of a run read it. It loads nothing but the standard library.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ReportForm(NamedTuple):
    """Describes one form of the report; a file's form has a suffix for its name.

    Attributes:
        function: `module:name`, imported only where the form is made. That of a file returns the content for
            `RunResults`, or for a list of them if `several`; nothing where nothing was measured. That of
            another form is given them and pytest's configuration; it raises `FileError` if it cannot write.
        several: whether one file may hold several runs, and baselines.
        fields: of the `RunResults`; the form is made where one of them holds something.
        variables: of the environment; one of them must be set, if there are any.
        in_summary: it is part of pytest's summary, which is made after all others and tells of them.
    """

    function: str
    holds: str = ""
    several: bool = True
    fields: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    in_summary: bool = False


RUN_FILE = ".json"
"""Suffix of the file that holds a whole run."""

FORMS: dict[str, ReportForm] = {
    RUN_FILE: ReportForm(
        "pytest_gpukern.report.run_file:run_text",
        "the whole run, which `gpukern report`, `compare` and `baseline merge` read",
        several=False,
    ),
    ".html": ReportForm(
        "pytest_gpukern.report.html:page", "a page with tables and plots, which loads nothing"
    ),
    ".md": ReportForm(
        "pytest_gpukern.report.markdown:comment",
        "a comment for a pull request, of at most 65,536 characters",
        several=False,
    ),
    ".csv": ReportForm("pytest_gpukern.report.csv_table:csv_text", "a table with a row for each measurement"),
    "pytest-benchmark": ReportForm("pytest_gpukern.benchmark_interop.publishing:write", fields=("results",)),
    "GitHub": ReportForm(
        "pytest_gpukern.report.github:write",
        fields=("results", "failures", "unchanged"),
        variables=("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"),
    ),
    "terminal": ReportForm(
        "pytest_gpukern.report.terminal:write",
        fields=("results", "skips", "rejected", "problems", "unchanged"),
        in_summary=True,
    ),
}
"""Suffix of a file, or name of another form → how it is made."""


def suffixes() -> list[str]:
    return sorted(name for name in FORMS if name.startswith("."))


def suffix_of(path: Path) -> str | None:
    suffix = path.suffix.lower()
    return suffix if suffix in suffixes() else None
