"""Writes what the code knows of options, commands and our files into pages and a schema of `docs/reference`.

`python docs/reference_tables.py`

A page holds the text between two marks, so that a reader of the repository sees it, too.
`tests/plugin/test_docs.py` fails where the code says something else by now.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from pytest_gpukern.baseline.code_file import CodeFile
from pytest_gpukern.baseline.codec import BaselineFile
from pytest_gpukern.cli.exits import STATUSES
from pytest_gpukern.cli.main import COMMANDS
from pytest_gpukern.report.run_file import RunFile
from pytest_gpukern.values.options import GROUPS, Option

REFERENCE = Path(__file__).parent / "reference"
PACKAGE = Path(__file__).parents[1] / "pytest_gpukern"
MARKED = re.compile(r"(<!-- written by docs/reference_tables\.py -->\n).*(<!-- end of it -->\n)", re.DOTALL)


def options() -> Iterator[str]:
    """Yields a heading and a table for each group of options."""
    for heading, group in GROUPS.items():
        title = heading.removeprefix("GPU kernels, ")
        yield f"## {'The run' if title == heading else _sentence(title)}"
        yield _table(("option", "values", "what it does"), map(_row, group))


def _row(option: Option) -> tuple[str, str, str]:
    values = ", ".join(f"`{value}`" for value in ([option.metavar] if option.metavar else option.choices))
    told = re.sub(r"\bnone(?=: )", "`none`", option.help.replace("%%", "%"))
    return f"`{option.cli}`", values or "a flag", f"{_sentence(_prose(told))}. {option.more}".rstrip()


def commands() -> Iterator[str]:
    """Yields of each command what its `--help` says."""
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"gpukern {name}", allow_abbrev=False)
        importlib.import_module(f"pytest_gpukern.cli.{name}").declare(parser)
        yield from _help(parser, "##")


def _help(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    """Yields what a command's help says, in our own form: that of argparse differs between Pythons."""
    parser.color = False
    yield f"{level} `{parser.prog}`"
    yield _prose((parser.description or "").removesuffix(f" {STATUSES}"))  # which stand above
    told = parser._get_formatter()._expand_help
    shown = [action for action in parser._actions if action.help and "-h" not in action.option_strings]
    if shown:
        yield _table(
            ("argument", "what it does"), [(_written(action), _prose(told(action))) for action in shown]
        )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inside in action.choices.values():
                yield from _help(inside, f"{level}#")


def _written(action: argparse.Action) -> str:
    """Returns an argument as one types it, with its value."""
    choices = f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper()
    value = "" if action.nargs == 0 else f" {action.metavar or choices}{' …' if action.nargs == '+' else ''}"
    *short, last = action.option_strings or [""]
    return ", ".join(f"`{name}`" for name in (*short, f"{last}{value}".strip()))


def _prose(text: str) -> str:
    """Returns text that is no Markdown as Markdown: options as code, and no sign that means something."""
    code_or_sign = r"`[^`]*`|--[a-z][a-z-]*(?:=[\w./]*\w/?)?|[*<\[]"
    return re.sub(code_or_sign, lambda found: _quoted(found[0]), text)


def _quoted(found: str) -> str:
    if found.startswith("--"):
        return f"`{found}`"
    return f"\\{found}" if len(found) == 1 else found


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (heads, *rows)]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("-" * 3 for _ in heads), *lines[1:]])


def schema() -> str:
    """Returns the JSON schema of our files as they are written, a model a line.

    A result may lack any field: what sessions share stands in their epoch or process.
    """
    files = (RunFile, BaselineFile, CodeFile)
    roots, models = msgspec.json.schema_components(files, ref_template="#/$defs/{name}")
    models["Result"]["required"] = []
    whole = {"$ref": "#/$defs/Result"}
    for file in (RunFile, BaselineFile):
        models[file.__name__]["properties"]["processes"] = {"type": "object", "additionalProperties": whole}
    models["Epoch"]["properties"]["shared"] = whole
    for name in ("point", "parameters"):  # values that a user chose, which msgspec spells out level by level
        models["CaseInfo"]["properties"][name] = {"type": "object"}
    for model in models.values():
        model["description"] = inspect.cleandoc(model.get("description", ""))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": roots, "$defs": {}}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(model, ensure_ascii=False)}" for name, model in models.items()
    )
    return json.dumps(head).replace("{}", f"{{\n{lines}\n}}") + "\n"


def columns() -> Iterator[str]:
    """Yields a table of what the headings of our tables mean, which the page shows, too."""
    meanings = (PACKAGE / "report/page/columns.md").read_text(encoding="utf-8").rstrip()
    yield f"{_table(('column', 'meaning'), ())}\n{meanings}"


PAGES = {
    REFERENCE / "options.md": options,
    REFERENCE / "commands.md": commands,
    REFERENCE / "columns.md": columns,
}
SCHEMA = REFERENCE / "files.schema.json"


def written(page: Path) -> str:
    """Returns a page with what stands between its marks as the code has it now.

    Raises:
        ValueError: the page lacks a mark.
    """
    between = "\n\n".join(PAGES[page]())
    text, marks = MARKED.subn(
        lambda found: f"{found[1]}\n{between}\n\n{found[2]}", page.read_text(encoding="utf-8")
    )
    if marks != 1:
        raise ValueError(
            f"{page} lacks `<!-- written by docs/reference_tables.py -->` or `<!-- end of it -->`"
        )
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
