"""Configures the site, and writes the pages that are made from tables of the code: options and commands."""

import argparse
import contextlib
import io
import os
import pkgutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from pytest_gpukern.cli.main import COMMANDS  # noqa: E402
from pytest_gpukern.package import __version__  # noqa: E402
from pytest_gpukern.values.options import OPTIONS  # noqa: E402

project = "pytest-gpukern"
author = "the authors of pytest-gpukern"
copyright = "2026, MIT licence"
release = version = __version__
default_role = "code"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated", "recorded", "examples"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nitpicky = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "pytest-gpukern"
html_show_sphinx = False


def option_table() -> str:
    """Returns the table of options, in Markdown."""
    rows = ["| option | values | what it does |", "|---|---|---|"]
    for option in OPTIONS:
        values = option.metavar or ", ".join(f"`{choice}`" for choice in option.choices)
        if option.metavar:
            values = f"`{option.metavar.replace('|', '` or `')}`"
        elif option.flag:
            values = "a flag"
        text = option.help.replace("%%", "%").replace("|", "\\|")
        rows.append(f"| `{option.cli}` | {values} | {text[0].upper()}{text[1:]} |")
    return "\n".join(rows) + "\n"


def command_help() -> str:
    """Returns what `gpukern COMMAND --help` prints of each command, in Markdown."""
    os.environ["COLUMNS"] = "100"
    sections = []
    for name, (function, summary) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"gpukern {name}", allow_abbrev=False)
        pkgutil.resolve_name(function)(parser)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            parser.print_help()
        text = printed.getvalue().rstrip()
        sections.append(
            f"## `gpukern {name}`\n\n{summary[0].upper()}{summary[1:]}.\n\n```text\n{text}\n```\n"
        )
        nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for own, sub in (item for action in nested for item in action.choices.items()):
            sections.append(f"### `gpukern {name} {own}`\n\n```text\n{sub.format_help().rstrip()}\n```\n")
    return "\n".join(sections)


GENERATED = HERE / "_generated"
GENERATED.mkdir(exist_ok=True)
(GENERATED / "options.md").write_text(option_table(), encoding="utf-8")
(GENERATED / "commands.md").write_text(command_help(), encoding="utf-8")
