"""Runs `gpukern init`: writes an ini option, a first test, a CI workflow and the baselines folder."""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.config.findpaths import load_config_dict_from_file, locate_config

from pytest_gpukern.cli import exits
from pytest_gpukern.values.atomic_file import replace
from pytest_gpukern.values.backend_table import missing_library
from pytest_gpukern.values.project import backends_in
from pytest_gpukern.values.untrusted_json import FileError

_TEMPLATES = Path(__file__).parent / "templates"
_OPTION = "gpukern_simulator"
_PYPROJECT = "pyproject.toml"


class _Configuration(NamedTuple):
    """Holds the file that pytest reads its options from, its text, the section for them, and the options."""

    path: Path
    text: str
    section: str
    options: Mapping[str, Any]

    @property
    def line(self) -> str:
        return f'{_OPTION} = "auto"' if self.path.suffix == ".toml" else f"{_OPTION} = auto"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Adds {_OPTION} to the file that pytest reads, or to a new {_PYPROJECT}. Writes a first test, a "
        "folder for baselines and, at the root of the repository, a workflow for GitHub. Overwrites no file. "
        "If pytest reads a file of a folder above, prints the line to add there. "
        "Exit status: 0 fine, 1 a line is left for you to add, 3 a file cannot be read or written."
    )
    parser.set_defaults(run=lambda _: init(Path.cwd()))


def init(folder: Path) -> int:
    try:
        configuration = _configuration(folder)
        tests = _tests_folder(folder, configuration)
        used = backends_in(folder)
        only_triton = missing_library("numba") and not missing_library("triton", compiles=True)
        backend = "triton" if "numba" not in used and ("triton" in used or only_triton) else "numba"
        test = _TEMPLATES / f"test_saxpy_{backend}.py"
        files = (
            (tests / "test_saxpy.py", test.read_bytes(), "a first test"),
            (tests / "baselines" / ".gitkeep", b"", "for recorded times; commit this folder"),
            (
                *_workflow(folder, triton="triton" in {*used, backend}),
                'for CI; look at its lines marked "replace"',
            ),
        )
        written = _write_option(configuration, folder)
        lines = [_line(folder, configuration.path, written, configuration.line)]
        lines += [_line(folder, path, _create(path, content), purpose) for path, content, purpose in files]
    except (FileError, OSError) as error:
        exits.complain("init", error)
        return exits.UNREADABLE
    by_hand = not (written or _OPTION in configuration.options)
    if by_hand:
        lines += ["", f"Add to {configuration.path}, below [{configuration.section}]:"]
        lines += [f"  {configuration.line}"]
    command = f"pytest {os.path.relpath(files[0][0], folder)}"
    if missing_library(backend, compiles=True):
        command = f"pip install 'pytest-gpukern[{backend}]'"
    exits.show([*lines, "", f"Next: {command}"])
    return exits.BAD if by_hand else exits.FINE


def _workflow(folder: Path, *, triton: bool) -> tuple[Path, bytes]:
    """Returns file and text of the workflow: GitHub reads it in the repository's root only."""
    top = next((of for of in (folder, *folder.parents) if (of / ".git").exists()), folder)
    part = folder.relative_to(top).as_posix()
    name = "kernels" if folder == top else re.sub(r"[^\w.]+", "-", f"kernels-{part}", flags=re.ASCII)
    text = (_TEMPLATES / "kernels.yml").read_text(encoding="utf-8")
    text = text.replace("name: kernels", f"name: {name}", 1)
    text = text.replace('FOLDER: "."', f"FOLDER: {json.dumps(part)}")
    if triton:
        text = re.sub(r"(pytest-gpukern\[\w+)", r"\1,triton", text)
    return top / ".github" / "workflows" / f"{name}.yml", text.encode()


def _configuration(folder: Path) -> _Configuration:
    """Returns the file that pytest reads in `folder`, or else the pyproject.toml to make or extend there.

    Raises:
        FileError: one of them cannot be read.
    """
    try:
        _, path, options, _ = locate_config(folder, [folder])
        if path is None or (path.name == _PYPROJECT and not options):
            path = folder / _PYPROJECT
        text = path.read_bytes().decode() if path.is_file() else ""
    except (OSError, ValueError, pytest.UsageError, pytest.fail.Exception) as error:
        raise FileError(folder, f"pytest cannot read its options: {error}", "Mend it first") from error
    section = {_PYPROJECT: "tool.pytest.ini_options", "setup.cfg": "tool:pytest"}.get(path.name, "pytest")
    if path.name == _PYPROJECT and any(value.mode == "toml" for value in options.values()):
        section = "tool.pytest"
    return _Configuration(path, text, section, options)


def _tests_folder(folder: Path, configuration: _Configuration) -> Path:
    found = configuration.options.get("testpaths") if configuration.path.parent == folder else None
    names = found.value if found else ()
    names = names.split() if isinstance(names, str) else names
    return next((folder / name for name in names if (folder / name).is_dir()), folder / "tests")


def _write_option(configuration: _Configuration, folder: Path) -> bool:
    """Adds our line to a file of `folder` and changes nothing else; returns whether it did."""
    path, old, section, options = configuration
    if path.parent != folder or _OPTION in options:
        return False
    end = "\r\n" if "\r\n" in old else "\n"
    header = re.search(rf"^\[{re.escape(section)}\][^\r\n]*", old, re.MULTILINE)
    if header:
        new = f"{old[: header.end()]}{end}{configuration.line}{old[header.end() :]}"
    else:
        before = old if not old or old.endswith("\n") else old + end
        new = f"{before}{end if old else ''}[{section}]{end}{configuration.line}{end}"
    with tempfile.TemporaryDirectory() as trial:
        tried = Path(trial, path.name)
        tried.write_bytes(new.encode())
        try:
            read = load_config_dict_from_file(tried) or {}
        except pytest.UsageError:  # the section is there already, in another spelling
            return False
    if in_place := _OPTION in read:  # or what looked like the header is part of a text
        replace(path, new.encode())
    return in_place


def _create(path: Path, content: bytes) -> bool:
    """Writes a new file with its folders; returns False, and changes nothing, where it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as stream:
            stream.write(content)
    except FileExistsError:
        return False
    return True


def _line(folder: Path, path: Path, written: bool, purpose: str) -> str:
    shown = os.path.relpath(path, folder)
    return f"wrote  {shown:30}  {purpose}" if written else f"left   {shown:30}  is there already"
