"""Where the modules of a side came from: its own tree, the other one, or a copy installed elsewhere.

A base whose modules come from the working tree would be compared with itself: SAME, whatever changed.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_OF_INSTALLERS = ("site-packages", "dist-packages")
_MARKS_AN_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
_NOT_JUDGED = ("pytest_gpukern", "__main__", "__mp_main__")
"""This plugin's own code measures both sides."""
_NOT_OF_PROJECTS = {*sys.stdlib_module_names, *_NOT_JUDGED, "test", "conftest", "setup", "noxfile"}
"""Top-level names that say nothing about a project: the standard library's, and those of tools."""


@dataclass(frozen=True)
class Loaded:
    """A module that a session had loaded when it ended.

    Attributes:
        name: dotted.
        file: as the module says.
        sha256: of the file's contents.
    """

    name: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Tree:
    """One side: a folder, and which code is expected to come from it.

    Attributes:
        label: what the side is called in messages.
        top: its top folder.
        names: top-level import name → file or folder in it (see `own_names`).
    """

    label: str
    top: Path
    names: Mapping[str, Path]

    @classmethod
    def at(cls, label: str, top: Path) -> Tree:
        """The side whose top folder is `top`."""
        return cls(label, top, own_names(top))

    def holds(self, file: Path) -> bool:
        """Whether a file is code of this tree: below its top, and not of an environment that lies in it."""
        if not file.is_relative_to(self.top):
            return False
        inside = file.relative_to(self.top)
        if any(part in _OF_INSTALLERS for part in inside.parts):
            return False
        folders = [self.top / folder for folder in inside.parents if folder.name]
        return not any((folder / mark).exists() for folder in folders for mark in _MARKS_AN_ENVIRONMENT)


def own_names(top: Path) -> dict[str, Path]:
    """Top-level import names that a tree provides, and where: beside its top, in `src` and as declared.

    Declared means by pyproject.toml: folders of packages for setuptools, Hatch, Poetry and maturin, and
    pytest's `pythonpath`. Namespace packages are known only where they are declared by name.
    """
    declared = _pyproject(top)
    found: dict[str, Path] = {}
    for folder in dict.fromkeys([top, top / "src", *(top / where for where in _folders(declared))]):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = _import_name(path)
            if name is not None:
                found.setdefault(name, path)
    for path in (top / package for package in _packages(declared)):
        if path.is_dir():
            found.setdefault(path.name, path)
    return {name: path for name, path in found.items() if name not in _NOT_OF_PROJECTS}


def misplaced(modules: Iterable[Loaded], side: Tree, other: Tree) -> str | None:
    """Why what a side measured is not its own code, naming modules, files and the remedy; None where it is.

    Args:
        modules: what the side's session had loaded.
        side: the tree that was to be measured.
        other: the tree that it is compared with.
    """
    complaints: dict[str, list[str]] = {}
    for module in modules:
        package = module.name.partition(".")[0]
        if package in _NOT_JUDGED:
            continue
        named, file = Path(module.file), Path(module.file).resolve()
        home = _tree_of(file, side, other)
        if home is other:
            text = f"{module.name} was loaded from {named}, which is {other.label}"
        elif package in side.names and home is not side and not side.holds(named):
            text = f"{module.name} was loaded from {named}, not from {side.names[package]}"
        else:
            continue
        complaints.setdefault(package, []).append(text)
    if not complaints:
        return None
    lines = [
        f"  {texts[0]}" + (f" (and {len(texts) - 1} more of {package})" if len(texts) > 1 else "")
        for package, texts in complaints.items()
    ]
    return "\n".join(
        [f"{side.label} did not run its own code:", *lines, _remedy(list(complaints), side, other)]
    )


def combined_hash(modules: Iterable[Loaded], side: Tree) -> tuple[int, str]:
    """How many files of a side's own its session loaded, and the beginning of one hash over them all."""
    own = {
        str(Path(module.file).relative_to(side.top)): module.sha256
        for module in modules
        if side.holds(Path(module.file))
    }
    digest = hashlib.sha256("".join(f"{path}\0{own[path]}\0" for path in sorted(own)).encode())
    return len(own), digest.hexdigest()[:8]


def _tree_of(file: Path, *trees: Tree) -> Tree | None:
    """The tree whose code a file is; where one lies inside the other, the inner one."""
    round_it = [tree for tree in trees if file.is_relative_to(tree.top)]
    nearest = max(round_it, key=lambda tree: len(tree.top.parts), default=None)
    return nearest if nearest is not None and nearest.holds(file) else None


def _remedy(packages: Sequence[str], side: Tree, other: Tree) -> str:
    """How to have both sides load their own code."""
    places = [tree.names[name] for name in packages for tree in (side, other) if name in tree.names]
    folder = "."
    for tree in (side, other):
        if places and places[0].is_relative_to(tree.top):
            folder = str(places[0].parent.relative_to(tree.top))
    return (
        f'Let each side find its code by its path: `pythonpath = ["{folder}"]` in pytest\'s ini, or '
        f"PYTHONPATH={folder} (entries below the working tree are mapped to the other side); then "
        f"`pip uninstall {' '.join(packages)}`, where it is an editable install or a copy. Code that has to "
        "be built: --gpukern-against-setup='pip install --no-deps --target=build/against .', the same for "
        "the working tree, and PYTHONPATH=build/against"
    )


def _import_name(path: Path) -> str | None:
    """The name that a file or a folder is imported by from its parent, or None."""
    if path.is_dir():
        return path.name if path.name.isidentifier() and (path / "__init__.py").is_file() else None
    for suffix in importlib.machinery.all_suffixes():
        name = path.name.removesuffix(suffix)
        if name != path.name and name.isidentifier():
            return name
    return None


def _pyproject(top: Path) -> dict[str, Any]:
    try:
        with (top / "pyproject.toml").open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError):
        return {}


def _at(declared: Mapping[str, Any], path: str) -> Any:
    """The value under a dotted path in `[tool]`, or None."""
    value: Any = declared.get("tool")
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _folders(declared: Mapping[str, Any]) -> Iterator[str]:
    """Folders that are on the import path, relative to the top."""
    package_dir = _at(declared, "setuptools/package-dir")
    yield from _texts(_at(declared, "setuptools/packages/find/where"))
    yield from _texts(package_dir.get("") if isinstance(package_dir, dict) else None)
    yield from _texts(_at(declared, "maturin/python-source"))
    yield from _texts(_at(declared, "pdm/build/package-dir"))
    yield from _texts(_at(declared, "pytest/ini_options/pythonpath"))
    for package in _poetry(declared):
        yield from _texts(package.get("from"))


def _packages(declared: Mapping[str, Any]) -> Iterator[str]:
    """Folders that are packages, relative to the top."""
    yield from _texts(_at(declared, "hatch/build/targets/wheel/packages"))
    for package in _poetry(declared):
        for name in _texts(package.get("include")):
            yield f"{package.get('from', '.')}/{name}"


def _poetry(declared: Mapping[str, Any]) -> list[dict[str, Any]]:
    packages = _at(declared, "poetry/packages")
    return [each for each in packages if isinstance(each, dict)] if isinstance(packages, list) else []
