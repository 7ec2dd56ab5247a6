"""Configures the site, and writes the parts of pages that are made from the code: options and commands."""

from __future__ import annotations

import argparse
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from pytest_gpukern.cli.main import COMMANDS  # noqa: E402
from pytest_gpukern.package import __version__  # noqa: E402
from pytest_gpukern.values.options import GROUPS, Option  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

project = "pytest-gpukern"
author = "the authors of pytest-gpukern"
copyright = "2026, MIT licence"
release = version = __version__
default_role = "code"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated", "_templates", "examples"]
myst_heading_anchors = 3
nitpick_ignore = [("py:class", "DTypeLike"), ("py:class", "Point"), ("py:class", "MeasuredTest")]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_default_options = {"exclude-members": "__new__"}  # which "separated" else shows at each class
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}  # no button that shows a page's source
html_copy_source = False
html_title = "pytest-gpukern"
html_show_sphinx = False
templates_path = ["_templates"]
html_static_path = ["_static"]
html_js_files = ["scrolling.js"]


def options() -> str:
    """Returns every option with its values, its meaning and its ini twin, in MyST, under headings."""
    sections = []
    for heading, group in GROUPS.items():
        title = heading.removeprefix("GPU kernels, ")
        title = "The run" if title == heading else f"{title[0].upper()}{title[1:]}"
        sections += [f"## {title}", *map(described, group)]
    return "\n\n".join(sections) + "\n"


def described(option: Option) -> str:
    """Returns one option, in MyST."""
    values = option.metavar or ",".join(option.choices)
    written = "" if option.flag else f" {values}" if option.metavar else f" {{{values}}}"
    text = option.help.replace("%%", "%")
    text = re.sub("--[a-z][a-z=-]*", r"`\g<0>`", text)  # two dashes, which else become a long one
    text = re.sub(r"\b(gpu|none)(?=: )", r"`\1`", text)  # what stands before a colon is a value
    text = f"{text[0].upper()}{text[1:]}. {option.more}".rstrip()
    return f"```{{option}} {option.cli}{written}\n{text}\nIni: `{option.ini}`.\n```"


def commands() -> str:
    """Returns what `gpukern COMMAND --help` prints of each command, in MyST."""
    return "\n".join(help_of_commands())


def help_of_commands() -> Iterator[str]:
    """Yields a section for each command, and for each command inside it."""
    for name, (declare, summary) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"gpukern {name}", allow_abbrev=False, formatter_class=Wide)
        pkgutil.resolve_name(declare)(parser)
        yield f"## `gpukern {name}`\n\n{summary[0].upper()}{summary[1:]}.\n\n{shown(parser)}"
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for own, inside in action.choices.items():
                    yield f"### `gpukern {name} {own}`\n\n{shown(inside)}"


class Wide(argparse.HelpFormatter):
    """Wraps at the same width, whatever terminal the site is built in."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=88)


def shown(parser: argparse.ArgumentParser) -> str:
    """Returns the help of a parser as a block."""
    parser.formatter_class = Wide
    return f"```text\n{parser.format_help().rstrip()}\n```\n"


def setup(app: Sphinx) -> None:  # noqa: ARG001
    """Writes what pages include, before Sphinx reads them."""
    generated = HERE / "_generated"
    generated.mkdir(exist_ok=True)
    (generated / "options.md").write_text(options(), encoding="utf-8")
    (generated / "commands.md").write_text(commands(), encoding="utf-8")
