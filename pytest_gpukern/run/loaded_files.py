"""Finds which files of a project a test loads: what its modules import, and what it was seen to open.

Imports are read from the source and followed, so a file counts whether or not the test came to its import.
What is opened is seen by Linux's inotify: it also tells of libraries in C and of other processes, and costs a
test nothing while it is timed, as a hook for audit events would.
Where this cannot tell what a test loads, it says so, and the test has to run.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import hashlib
import os
import re
import struct
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from itertools import chain
from pathlib import Path
from posixpath import basename, dirname, isdir, isfile, join, realpath  # as git writes paths
from typing import Any, Literal, NamedTuple

from pytest_gpukern.gpu.fingerprint import asked_of_git
from pytest_gpukern.package import FOLDER

_BY_NAME = ("import_module", "__import__", "importorskip", "resolve_name", "run_module")
"""Functions that import what their first argument names."""
_CACHED = re.compile(r"(?:(.+)/)?__pycache__/([^/]+?)\.[a-z]+-\d[^/]*\.pyc")
"""A module's compiled code: pytest puts its own version between Python's and the suffix."""
_OF_TOOLS = re.compile(r"(^|/)(__pycache__|\.(git|pytest_cache|hypothesis|mypy_cache|benchmarks))(/|$)")
_MOST_FOLDERS = 8192
"""As many as Linux lets a user watch, where nobody has raised that."""
_GENERATED = re.compile(r"/(\.triton|torchinductor_[^/]+)/")
"""Folders of code that Triton and PyTorch make from sources that count, by versions that count."""


class Loads(NamedTuple):
    """Says what a test loads, by paths from the top of the repository.

    Attributes:
        files: those that count wherever they lie.
        beginnings: what begins so counts, too, as all below a folder.
        unsure: why more may be loaded than this, in words; empty where nothing speaks for that.
    """

    files: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()
    unsure: str = ""

    def has(self, path: str) -> bool:
        return path in self.files or path.startswith(self.beginnings)


class Project:
    """Knows the files of a repository, and what its modules import.

    Attributes:
        top: its top folder.
        gone: files that were deleted, which an import may mean still.
    """

    def __init__(self, top: Path) -> None:
        self.top, self.gone = top, frozenset[str]()
        own = self.path_of(FOLDER)
        self._own = () if own.startswith("/") else (f"{own}/",)  # which counts as a folder
        self._imported_by = functools.cache(self._imports)
        self._lies_in = functools.cache(self._entries)
        self._hash_of = functools.cache(self._hash_of_file)
        self.hash_of_loads = functools.cache(self._hash_of_loads)  # tests of a file mostly load the same

    @classmethod
    def around(cls, folder: Path) -> Project | None:
        """Returns the project that holds a folder; None if git does not know it."""
        top = asked_of_git(["rev-parse", "--show-toplevel"], folder)
        project = None if top is None else cls(Path(realpath(top.removesuffix("\n"))))
        return project if project is not None and project.tracked else None

    def path_of(self, file: str | Path) -> str:
        """Returns a file's path from the top, which is empty for the top; absolute if it lies elsewhere."""
        place = realpath(file)
        return "" if place == str(self.top) else place.removeprefix(f"{self.top}/")

    @functools.cached_property
    def tracked(self) -> frozenset[str]:
        """The files that git tracks."""
        return frozenset(filter(None, (asked_of_git(["ls-files", "-z"], self.top) or "").split("\0")))

    @functools.cached_property
    def comparable(self) -> frozenset[str]:
        """Those of which git tells whether they changed.

        That is no link, no submodule, none that a filter keeps, as git-lfs, and none that is hidden from git.
        """
        listed = asked_of_git(["ls-files", "-z", "-v", "-s", "--", ":(top,attr:!filter)"], self.top) or ""
        return frozenset(of.partition("\t")[2] for of in listed.split("\0") if of.startswith("H 100"))

    def loads(self, test: Path, reads: Sequence[str] = (), opened: Iterable[str] = ()) -> Loads:
        """Returns what a test loads.

        Args:
            test: its file.
            reads: patterns of further files, from the test's folder: all counts that begins as they do.
            opened: files that it was seen to open, by their paths from the top, or absolute elsewhere.
        """
        start = self.path_of(test)
        if start.startswith("/"):
            return Loads(unsure=f"{test} lies outside of the repository")
        beside = (join(of, name) for of in _folders_above(start) for name in ("conftest.py", "__init__.py"))
        todo = [start, *(path for path in beside if isfile(self.top / path)), *opened]
        files, unsure = set[str](), ""
        while todo:
            path = todo.pop()
            if path in files or path.startswith(self._own):
                continue
            files.add(path)
            imported, why = self._imported_by(path) if path.endswith(".py") else ((), "")
            unsure = unsure or self._why_unsure(path) or why
            todo += imported
        folder = dirname(start)
        beginnings = [f"{folder}/"] if folder else []
        for pattern in reads:
            beginning = self.path_of(join(self.top, folder, re.split(r"[*?[]", pattern)[0]))
            if not any(path.startswith(beginning) for path in self.comparable):
                unsure = unsure or f"reads={pattern!r} names no file of git"
            beginnings.append(beginning)
        return Loads(frozenset(files), (*beginnings, *self._own), unsure)

    def _why_unsure(self, path: str) -> str:
        if path.startswith("/"):
            return f"{path} is neither in the repository nor of an installed distribution"
        is_told = path in self.comparable or not isfile(self.top / path)  # a change, if it is gone
        return "" if is_told else f"git cannot tell whether {path} changed"

    def _imports(self, path: str) -> tuple[frozenset[str], str]:
        """Returns the files that a module may import, and why there may be others, in words."""
        try:
            tree = ast.parse((self.top / path).read_bytes())
        except FileNotFoundError:
            return frozenset(), ""
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return frozenset(), f"{path} cannot be read as Python"
        above = _folders_above(path)
        names, relative, unsure = set[str](), set[tuple[str, str]](), ""
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    names.update(alias.name for alias in node.names)
                case ast.ImportFrom(module=module, level=level):
                    of = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
                    if level:
                        folder = above[max(-level, -len(above))]
                        relative |= {(folder, name) for name in ("__init__", *of)}
                    else:
                        names.update(of)
                case ast.Call(func=ast.Name(called) | ast.Attribute(attr=called)) if called in _BY_NAME:
                    match node.args:
                        case [ast.Constant(str(text)), *_] if not text.startswith("."):
                            names.add(text.partition(":")[0])
                        case _:
                            unsure = f"{path}:{node.lineno} imports what its source does not name"
                case ast.Assign(targets=[ast.Name("pytest_plugins")]):
                    names.update(str(of.value) for of in ast.walk(node.value) if isinstance(of, ast.Constant))
        meant = relative | {(folder, name) for folder in (*self._on_path, *above) for name in names}
        files = {file for folder, name in meant for file in self._files_of(folder, name)}
        beside = chain(*self._lies_in(dirname(path)).values())
        variants = {of for of in beside if re.fullmatch(r"(on_|wrong).*\.py", basename(of))}  # of a problem
        return frozenset(files | variants), unsure

    @functools.cached_property
    def _on_path(self) -> list[str]:
        """The folders of the repository in which Python looks for modules."""
        folders = (self.path_of(entry) for entry in sys.path if not _holds_distributions(entry))
        return [folder for folder in folders if not folder.startswith("/")]

    def _files_of(self, folder: str, name: str) -> Iterator[str]:
        """Yields the modules, extensions and packages in a folder that a name may mean; `*` means any."""
        first, _, rest = name.partition(".")
        lies_in = self._lies_in(folder)
        for entry in chain(*lies_in.values()) if first == "*" else lies_in.get(first, ()):
            path = self.path_of(self.top / entry)
            if entry.endswith((".py", ".so")):
                yield path
            else:
                yield from self._files_of(path, "__init__")
                yield from self._files_of(path, rest) if rest else ()

    def _entries(self, folder: str) -> dict[str, list[str]]:
        """Returns what lies in a folder, or did: name up to its first dot → paths."""
        at, below, entries = self.top / folder, join(folder, ""), defaultdict[str, list[str]](list)
        names = {of.name for of in at.iterdir()} if at.is_dir() else set()
        names |= {of.removeprefix(below).partition("/")[0] for of in self.gone if of.startswith(below)}
        for name in names:
            entries[name.partition(".")[0]].append(join(folder, name))
        return entries

    def _hash_of_file(self, path: str) -> str:
        try:
            return hashlib.sha256((self.top / path).read_bytes()).hexdigest()
        except OSError:
            return ""

    def _hash_of_loads(
        self, test: Path, reads: Sequence[str], opened: Iterable[str], but: Sequence[str]
    ) -> str | None:
        """Returns one hash over all that a test loads, but not below folders; None where it is not sure.

        This plugin measures what a test does, and is no part of it.
        """
        loads = self.loads(test, reads, opened)
        if loads.unsure:
            return None
        left_out = (*self._own, *(f"{self.path_of(folder)}/" for folder in but))
        paths = {path for path in self.tracked if loads.has(path)} | loads.files
        kept = sorted(path for path in paths if not path.startswith(left_out))
        text = "".join(f"{path}\0{self._hash_of(path)}\0" for path in kept)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _folders_above(path: str) -> list[str]:
    """Returns the folders that hold a file, from the top, which is empty."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


_When = Literal["before", "between", "test"]
"""Before tests are collected, between tests, and in a test."""


class OpenedFiles:
    """Sees which files below a project's top folder anybody opens.

    Attributes:
        project: whose files they are.
        why_blind: why it does not see all, in words; empty if it does.
    """

    _OPENED, _CREATED, _OVERFLOW, _FOLDER = 0x20, 0x100 | 0x80, 0x4000, 0x40000000
    """IN_OPEN, IN_CREATE | IN_MOVED_TO, IN_Q_OVERFLOW and IN_ISDIR of <sys/inotify.h>."""

    def __init__(self, project: Project) -> None:
        self.project, self.why_blind, self._queue = project, "", -1
        self._folders: dict[int, str] = {}
        self._data = set[str]()
        self._modules, self._objects = frozenset[str](), frozenset[str]()
        self._when: _When = "before"
        self._opened = defaultdict[_When, set[str]](set)
        try:
            self._watch()
        except (OSError, AttributeError) as error:
            self.why_blind = f"inotify cannot be used here: {error}"
        loaded = sorted(path for path in self._strangers() if not path.startswith("/"))
        if loaded:  # what it has read nobody saw
            remedy = "name its module in pytest_plugins of the root conftest instead"
            self.why_blind = f"{loaded[0]} was loaded before all conftests: {remedy}"

    def _watch(self) -> None:
        """Watches all folders but those of git and of environments."""
        c, top = ctypes.CDLL(None, use_errno=True), self.project.top
        self._queue = c.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if sys.pycache_prefix is not None:
            self.why_blind = "PYTHONPYCACHEPREFIX keeps compiled modules elsewhere"
        for at, folders, files in os.walk(top):
            if "pyvenv.cfg" in files or "conda-meta" in folders:
                folders.clear()
                continue
            folders[:] = [name for name in folders if name not in (".git", "node_modules")]
            watch = c.inotify_add_watch(self._queue, os.fsencode(at), self._OPENED | self._CREATED)
            if watch < 0:
                raise OSError(f"{os.strerror(ctypes.get_errno())}; fs.inotify.max_user_watches limits it")
            self._folders[watch] = self.project.path_of(at)
            if len(self._folders) > _MOST_FOLDERS:
                raise OSError(f"there are more than {_MOST_FOLDERS} folders")
        watched = {*self._folders.values()}
        for probe in self.project.comparable:
            if dirname(probe) in watched and isfile(top / probe):
                (top / probe).open("rb").close()
                if probe not in self._events():  # some sandboxes accept a watch and tell nothing
                    self.why_blind = "inotify tells nothing here"
                break

    def enter(self, when: _When) -> None:
        """Notes what was opened by now, and takes what is opened later for opened at another time.

        A module, fixture or plugin may keep for every test what was opened before tests, or between them.
        """
        self._opened[self._when].update(self._events(), self._strangers())
        self._when = when

    def of_test(self) -> set[str]:
        """Returns what was opened since the test began, and data opened before, which may have been kept.

        Paths are from the top of the repository, or absolute for what lies elsewhere.
        """
        self._opened[self._when] |= self._events()
        self._data |= {path for path in chain(*self._opened.values()) if not path.endswith(".py")}
        return self._opened["test"] | self._data

    def carried(self) -> dict[str, Any]:
        """Returns as plain JSON what travels on the report of a test's teardown."""
        self.of_test()
        self.enter("between")
        opened, self._opened = self._opened, defaultdict(set)
        return {"opened": {when: sorted(paths) for when, paths in opened.items()}, "blind": self.why_blind}

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Sees nothing of what is opened while entered, as by git, which reads files to find changes."""
        self._opened[self._when] |= self._events()
        yield
        self._events()

    def _events(self) -> set[str]:
        """Returns what was opened below the top since the last look.

        A new file that was made meanwhile is none: its content does not come from the repository.
        """
        opened, made = set[str](), set[str]()
        while content := self._read():
            at = 0
            while at < len(content):
                watch, mask, _, length = struct.unpack_from("iIII", content, at)
                name = os.fsdecode(content[at + 16 : at + 16 + length].rstrip(b"\0"))
                at += 16 + length
                if mask & self._OVERFLOW:
                    self.why_blind = "more files were opened at once than inotify tells"
                elif name and not mask & self._FOLDER:
                    path = join(self._folders[watch], name)
                    compiled = _CACHED.fullmatch(path)
                    if mask & self._CREATED:
                        made.add(path)
                    else:
                        opened.add("/".join(filter(None, compiled.groups())) + ".py" if compiled else path)
        tracked = self.project.tracked
        return {of for of in opened if of in tracked or not (of in made or _OF_TOOLS.search(of))}

    def _read(self) -> bytes:
        try:
            return os.read(self._queue, 1 << 16) if self._queue >= 0 else b""
        except BlockingIOError:
            return b""

    def _strangers(self) -> Iterator[str]:
        """Yields new modules and shared objects that no version and no file of git stands for."""
        maps = Path("/proc/self/maps")
        mapped = re.findall(rb"(/.*\.so[.\d]*)$", maps.read_bytes() if maps.exists() else b"", re.MULTILINE)
        modules, objects = frozenset(sys.modules), frozenset(map(os.fsdecode, mapped))
        files = (getattr(sys.modules.get(name), "__file__", None) for name in modules - self._modules)
        for file in (*files, *(objects - self._objects)):
            # Python loads by absolute paths; PyTorch gives names alone to modules that no file holds.
            if isinstance(file, str) and file.startswith("/") and not _is_installed(file):
                path = self.project.path_of(file)
                if not (path.startswith("/") and _GENERATED.search(path)):
                    yield path
        self._modules, self._objects = modules, objects

    def close(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)
        self._queue = -1


_SYSTEM = ("/usr/", "/lib", "/opt/", "/nix/")
"""Where the machine's image has shared objects, as CUDA's libraries; the driver's version is compared."""


@functools.cache
def _distributed() -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """Returns top-level names of installed distributions, their folders, and what else has a version."""
    folders = [f"{realpath(entry)}/" for entry in sys.path if _holds_distributions(entry)]
    python = [f"{realpath(sysconfig.get_path(kind))}/" for kind in ("stdlib", "platstdlib")]
    # Not packages_distributions(), which misses modules that top_level.txt does not name.
    records = ((of.read_text("RECORD") or "").splitlines() for of in metadata.distributions())
    names = {_top_level(line.lstrip('"')) for lines in records for line in lines}
    others = (*python, f"{sys.base_prefix}/lib/", f"{FOLDER}/", "/etc/python")
    return frozenset(names), tuple(folders), others


def _holds_distributions(folder: str) -> bool:
    return isdir(folder) and any(Path(folder).glob("*.dist-info"))


def _is_installed(file: str) -> bool:
    """Returns whether a version stands for a module or a shared object: Python's, a distribution's, ours."""
    names, folders, others = _distributed()
    place = realpath(file)
    for folder in folders:
        if place.startswith(folder):
            top = _top_level(place.removeprefix(folder))
            return top in names or top == "_virtualenv"  # which virtualenv writes, of no distribution
    return place.startswith(others) or (not place.endswith(".py") and place.startswith(_SYSTEM))


def _top_level(path: str) -> str:
    return re.split(r"[/.,]", path, maxsplit=1)[0]
