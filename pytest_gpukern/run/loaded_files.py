"""Finds which files of a project a test loads: what its modules import, and what it was seen to open.

Imports are read from the source and followed, so a file counts whether or not the test came to its import.
What is opened is seen by Linux's inotify: it also tells of libraries in C and of other processes, and costs a
test nothing while it is timed, as a hook for audit events would.
Where this cannot tell what a test loads, it says so, and the test has to run.
"""

from __future__ import annotations

import ast
import ctypes
import errno
import fnmatch
import functools
import glob
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from posixpath import dirname, isdir, isfile, islink, join, normpath, realpath, relpath  # as git writes paths
from typing import Any, NamedTuple

from pytest_gpukern.gpu.fingerprint import asked_of_git
from pytest_gpukern.package import FOLDER

_BY_NAME = ("import_module", "__import__", "importorskip", "resolve_name", "run_module")
"""Functions that import what their first argument names."""
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_CACHED = re.compile(r"(?:(.+)/)?__pycache__/([^/]+?)\.[a-z]+-\d[^/]*\.pyc")
"""A module's compiled code: pytest puts its own version between Python's and the suffix."""
_OF_TOOLS = re.compile(r"(^|/)(__pycache__|\.(git|pytest_cache|hypothesis|mypy_cache|benchmarks))(/|$)")
_NOT_WATCHED = (".git", "node_modules")
_MOST_FOLDERS = 8192
"""As many as Linux lets a user watch, where nobody has raised that."""
_GENERATED = re.compile(r"/(\.triton|torchinductor_[^/]+)/")
"""Folders of code that Triton and PyTorch make from sources that count, by versions that count."""


class Loads(NamedTuple):
    """Says what a test loads.

    Attributes:
        files: paths from the top of the repository.
        folders: all that lies below them counts, too; each ends in a slash.
        patterns: what else counts, as patterns of such paths.
        unsure: why more may be loaded than this, in words; empty where nothing speaks for that.
    """

    files: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    unsure: str = ""

    def has(self, path: str) -> bool:
        return (
            path in self.files
            or path.startswith(self.folders)
            or any(fnmatch.fnmatchcase(path, pattern) for pattern in self.patterns)
        )


class _Imports(NamedTuple):
    """Holds what a module imports: files, folders of which any module may be meant, and what is not told."""

    files: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    unsure: str = ""


class Project:
    """Knows the files of a repository, and what its modules import.

    Args:
        top: its top folder.
        path: Python's, of which the folders in the repository count.

    Attributes:
        gone: files that were deleted, which an import may mean still.
    """

    def __init__(self, top: Path, path: Iterable[str] = ()) -> None:
        self.top, self.gone = top, frozenset[str]()
        bases = map(realpath, path)
        self._bases = [of for of in bases if self._inside(of) is not None and not _holds_distributions(of)]
        self._packages_of = functools.cache(self._root_of_packages)
        self.imports = functools.cache(self._imports)
        self._hash_of = functools.cache(self._hash_of_file)
        self.hash_of_loads = functools.cache(self._hash_of_loads)  # tests of a file mostly load the same

    @classmethod
    def around(cls, folder: Path) -> Project | None:
        """Returns the project that holds a folder; None if git does not know it."""
        top = asked_of_git(["rev-parse", "--show-toplevel"], folder)
        project = None if top is None else cls(Path(realpath(top.removesuffix("\n"))), sys.path)
        return project if project is not None and project.tracked else None

    @functools.cached_property
    def tracked(self) -> dict[str, str]:
        """Path of each file that git tracks → why git cannot tell whether it changed; mostly empty."""
        listed = asked_of_git(["ls-files", "-z", "-v", "-s"], self.top) or ""
        as_they_are = asked_of_git(["ls-files", "-z", "--", ":(top,attr:!filter)"], self.top) or ""
        unfiltered, tracked = {*as_they_are.split("\0")}, {}
        for entry in filter(None, listed.split("\0")):
            about, _, path = entry.partition("\t")
            tag, mode, *_ = about.split()
            hidden = "assume-unchanged" if tag.islower() else "skip-worktree" if tag == "S" else ""
            why = "is a submodule" if mode == "160000" else hidden and f"is {hidden} for git"
            tracked[path] = why or ("" if path in unfiltered else "is kept by a filter of git, as by git-lfs")
        return tracked

    def loads(self, test: Path, reads: Sequence[str] = (), opened: Iterable[str] = ()) -> Loads:
        """Returns what a test loads.

        Args:
            test: its file.
            reads: patterns of further files, from the test's folder.
            opened: files that it was seen to open, by their paths from the top, or absolute elsewhere.
        """
        start = self.path_of(test)
        if start is None:
            return Loads(unsure=f"{test} lies outside of the repository")
        folder = dirname(start)
        above = [*_folders_above(start)]
        beside = {f"{at}{name}" for at in above for name in ("conftest.py", "__init__.py")}
        todo = [start, *filter(self._exists, beside), *opened]
        files, unsure = set[str](), ""
        while todo:
            path = todo.pop()
            if path in files or self._is_ours(path):
                continue
            files.add(path)
            unsure = unsure or self._why_unsure(path)
            links = self.links_in(path)
            files |= links
            todo += [target for link in links if (target := self._target(link))]
            if path.endswith(".py") and self._exists(path):
                imports = self.imports(path)
                unsure = unsure or imports.unsure
                todo += [*imports.files, *(file for of in imports.packages for file in self._modules_in(of))]
                todo += self._variants_beside(path)
        ours = self._inside(str(FOLDER))
        patterns = []
        for pattern in reads:
            ways = (pattern, f"{pattern}/*", pattern.replace("**/", ""))  # * means slashes, too
            found = [normpath(join(glob.escape(folder), way)) for way in ways]
            if not any(fnmatch.filter(self.tracked, way) for way in found):
                unsure = unsure or f"reads={pattern!r} names no file of git"
            patterns += found
        folders = [f"{folder}/" if folder else "", *([f"{ours}/"] if ours else [])]
        return Loads(frozenset(files), tuple(folders), tuple(patterns), unsure)

    def _why_unsure(self, path: str) -> str:
        if path.startswith("/"):
            return f"{path} is neither in the repository nor of an installed distribution"
        if path not in self.tracked:
            return f"git does not have {path}" if self._exists(path) else ""  # a change, if it is gone
        return f"{path} {self.tracked[path]}" if self.tracked[path] else ""

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
        below = tuple(f"{inside}/" for folder in but if (inside := self._inside(realpath(folder))))
        paths = {path for path in self.tracked if loads.has(path)} | loads.files
        kept = sorted(path for path in paths if not (path.startswith(below) or self._is_ours(path)))
        text = "".join(f"{path}\0{self._hash_of(path)}\0" for path in kept)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def path_of(self, file: Path) -> str | None:
        """Returns the path of a file from the top; None if it lies elsewhere."""
        return self._inside(realpath(file))

    def _inside(self, path: str) -> str | None:
        """Returns the path from the top of what lies in the repository; empty for the top itself."""
        top = f"{self.top}/"
        return path.removeprefix(top) if path.startswith(top) else "" if path == str(self.top) else None

    def _is_ours(self, path: str) -> bool:
        """Returns whether a file is this plugin's own, which counts as a folder."""
        return bool(FOLDER.parent == self.top and path.startswith(f"{FOLDER.name}/"))

    def _exists(self, path: str) -> bool:
        return isfile(self.top / path)

    def links_in(self, path: str) -> set[str]:
        """Returns the path and the folders on its way that are symbolic links."""
        parts = path.split("/")
        ways = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        return {way for way in ways if islink(self.top / way)}

    def _target(self, link: str) -> str | None:
        """Returns where a link leads: a path from the top, or an absolute one outside."""
        target = realpath(self.top / link)
        inside = self._inside(target)
        return None if isdir(target) and inside else inside or target

    def _modules_in(self, folder: str) -> list[str]:
        found = (self.top / folder).rglob("*.py")
        return [str(path.relative_to(self.top)) for path in found if not _OF_TOOLS.search(str(path))]

    def _variants_beside(self, path: str) -> list[str]:
        """Returns the files beside a module from which a problem loads its variants."""
        folder = (self.top / path).parent
        found = (*folder.glob("on_*.py"), *folder.glob("wrong*.py"))
        return [str(variant.relative_to(self.top)) for variant in found]

    # what a module imports

    def _imports(self, path: str) -> _Imports:
        try:
            tree = ast.parse((self.top / path).read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return _Imports(unsure=f"{path} cannot be read as Python")
        package = self._package_of(path)
        names, packages, unsure = set[str](), set[str](), ""
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    names.update(alias.name for alias in node.names)
                case ast.ImportFrom():
                    of = _absolute("." * node.level + (node.module or ""), package)
                    names.update(f"{of}.{alias.name}" for alias in node.names if alias.name != "*")
                    names.add(of)
                    packages |= {of} if any(alias.name == "*" for alias in node.names) else set()
                case ast.Call() if _called(node) in _BY_NAME and node.args:
                    text, whole = _beginning(node.args[0])
                    if whole:
                        names.add(_absolute(text.partition(":")[0], package))
                    elif "." in text:  # as in f".on_{backend}"
                        packages.add(_absolute(text.rpartition(".")[0] or ".", package))
                    else:
                        unsure = f"{path}:{node.lineno} imports what its source does not name"
                case ast.Assign(targets=[ast.Name("pytest_plugins")]):
                    names.update(str(of.value) for of in ast.walk(node.value) if isinstance(of, ast.Constant))
        bases = [*self._bases, self._packages_of(dirname(path)), str(self.top)]
        files = {file for name in names | packages for file in self._files_of(str(name), bases)}
        folders = {
            inside
            for name in packages
            for base in bases
            if isdir(at := join(base, *name.split("."))) and (inside := self._inside(at))
        }
        return _Imports(frozenset(files), frozenset(folders), unsure)

    def _files_of(self, name: str, bases: Iterable[str]) -> Iterator[str]:
        """Yields the files that may be imported for a name: packages, a module, an extension in place."""
        for base in dict.fromkeys(bases):
            at = base
            for part in name.split("."):
                at = join(at, part)
                for file in (f"{at}/__init__.py", *(f"{at}{suffix}" for suffix in (".py", *_EXTENSIONS))):
                    inside = self._inside(realpath(file))
                    if inside is not None and (isfile(file) or inside in self.gone):
                        yield inside
                if not isdir(at) and not any(of.startswith(f"{self._inside(at)}/") for of in self.gone):
                    break

    def _root_of_packages(self, folder: str) -> str:
        """Returns the folder that pytest puts on Python's path: the first upwards without `__init__.py`."""
        at = self.top / folder
        while at != self.top and (at / "__init__.py").is_file():
            at = at.parent
        return str(at)

    def _package_of(self, path: str) -> str:
        root = relpath(self._packages_of(dirname(path)), self.top)
        inside = dirname(path) if root == "." else relpath(dirname(path), root)
        return "" if inside in ("", ".") else inside.replace("/", ".")


def _folders_above(path: str) -> Iterator[str]:
    """Yields the folders that hold a path, each with a slash at its end; the top is empty."""
    parts = path.split("/")[:-1]
    for count in range(len(parts) + 1):
        yield "".join(f"{part}/" for part in parts[:count])


def _called(node: ast.Call) -> str:
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def _beginning(node: ast.expr) -> tuple[str, bool]:
    """Returns the text with which an expression begins, and whether that is all of it."""
    match node:
        case ast.Constant(str(text)):
            return text, True
        case ast.JoinedStr([ast.Constant(str(text)), *_]) | ast.BinOp(ast.Constant(str(text)), ast.Add()):
            return text, False
    return "", False


def _absolute(name: str, package: str) -> str:
    """Returns the name that a relative one means in a package."""
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # a module of no package; pytest finds what lies beside it by its own name
        return name.lstrip(".")


class OpenedFiles:
    """Sees which files below a project's top folder anybody opens.

    Attributes:
        project: whose files they are.
        why_blind: why it does not see all, in words; empty if it does.
    """

    _OPENED, _CREATED, _OVERFLOW, _FOLDER = 0x20, 0x100 | 0x80, 0x4000, 0x40000000
    """IN_OPEN, IN_CREATE | IN_MOVED_TO, IN_Q_OVERFLOW and IN_ISDIR of <sys/inotify.h>."""

    def __init__(self, project: Project) -> None:
        self._top, self.project = project.top, project
        self._folders: dict[int, str] = {}
        self._seen, self._outside, self._of_test, self._data = set[str](), set[str](), set[str](), set[str]()
        self._always: frozenset[str] | None = None
        self._known: frozenset[str] = frozenset()
        self._mapped: frozenset[bytes] = frozenset()
        self.why_blind, self._queue = "", -1
        try:
            self._watch()
        except (OSError, AttributeError) as error:
            self.why_blind = f"inotify cannot be used here: {error}"
        loaded = sorted(path for path in self._strangers() if not path.startswith("/"))
        if loaded:  # what it has read nobody saw
            remedy = "name its module in pytest_plugins of the root conftest instead"
            self.why_blind = f"{loaded[0]} was loaded before all conftests: {remedy}"

    def _watch(self) -> None:
        c = ctypes.CDLL(None, use_errno=True)
        self._queue = _right(c.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if sys.pycache_prefix is not None:
            self.why_blind = "PYTHONPYCACHEPREFIX keeps compiled modules elsewhere"
        for folder in self._folders_below():
            watch = c.inotify_add_watch(
                self._queue, os.fsencode(self._top / folder), self._OPENED | self._CREATED
            )
            self._folders[_right(watch)] = folder
        watched = {*self._folders.values()}
        for probe in self.project.tracked:
            if dirname(probe) in watched and isfile(self._top / probe) and not self.project.links_in(probe):
                (self._top / probe).open("rb").close()
                if probe not in self._events():  # some sandboxes accept a watch and tell nothing
                    self.why_blind = "inotify tells nothing here"
                break

    def _folders_below(self) -> list[str]:
        """Returns all folders but those of git and of environments."""
        found = []
        for at, folders, files in os.walk(self._top):
            if "pyvenv.cfg" in files or "conda-meta" in folders:
                folders.clear()
                continue
            folders[:] = [name for name in folders if name not in _NOT_WATCHED]
            found.append("" if at == str(self._top) else relpath(at, self._top))
            if len(found) > _MOST_FOLDERS:
                raise OSError(errno.ENOSPC, f"there are more than {_MOST_FOLDERS} folders")
        return found

    def begin_collecting(self) -> None:
        """Notes what was opened by now: plugins, early conftests and what these read serve every test."""
        self._always = frozenset(self._news() | {*self._strangers()})

    def begin_test(self) -> None:
        self._outside |= self._news()
        if self._always is not None:  # the first test: later ones look at their end, which may take 3 ms
            self._outside.update(self._strangers())
        self._of_test = set()

    def of_test(self) -> set[str]:
        """Returns what was opened since the test began, and data opened before, which may have been kept.

        Paths are from the top of the repository, or absolute for what lies elsewhere.
        """
        self._of_test |= self._news()
        opened = self._of_test | self._outside | (self._always or frozenset())
        self._data |= {path for path in opened if not path.endswith(".py")}
        return self._of_test | self._data

    def carried(self) -> dict[str, Any]:
        """Returns as plain JSON what travels on the report of a test's teardown."""
        self.of_test()
        self._of_test.update(self._strangers())
        outside, always, self._outside, self._always = self._outside, self._always, set(), None
        return {
            "opened": sorted(self._of_test),
            "outside": sorted(outside),
            "always": sorted(always or ()),
            "blind": self.why_blind,
        }

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Sees nothing of what is opened while entered, as by git, which reads files to find changes."""
        seen = self._events()
        yield
        self._events()
        self._seen |= seen

    def _news(self) -> set[str]:
        """Returns what was opened below the top since the last look.

        A new file that was made meanwhile is none: its content does not come from the repository.
        """
        seen, self._seen = self._seen, set()
        return seen | self._events()

    def _events(self) -> set[str]:
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
                    source = "/".join(filter(None, compiled.groups())) + ".py" if compiled else path
                    (made if mask & self._CREATED else opened).add(path if mask & self._CREATED else source)
        tracked = self.project.tracked
        return {of for of in opened if of in tracked or not (of in made or _OF_TOOLS.search(of))}

    def _read(self) -> bytes:
        try:
            return os.read(self._queue, 1 << 16) if self._queue >= 0 else b""
        except BlockingIOError:
            return b""

    def _strangers(self) -> Iterator[str]:
        """Yields new modules and shared objects that no version and no file of git stands for."""
        loaded = frozenset(sys.modules)
        for name in loaded - self._known:
            file = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(file, str) and not _is_installed(file):
                yield from self._placed(file)
        self._known |= loaded
        mapped = _mapped_objects()
        for entry in mapped - self._mapped:
            if not _is_installed(os.fsdecode(entry)):
                yield from self._placed(os.fsdecode(entry))
        self._mapped = mapped

    def _placed(self, file: str) -> Iterator[str]:
        place = realpath(file)
        inside = self.project._inside(place)
        if inside or not _GENERATED.search(place):
            yield inside or place

    def close(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)
        self._queue = -1


def _mapped_objects() -> frozenset[bytes]:
    try:
        mapped = Path("/proc/self/maps").read_bytes()
    except OSError:
        return frozenset()
    return frozenset(re.findall(rb"(/.*\.so[.\d]*)$", mapped, re.MULTILINE))


def _right(result: int) -> int:
    """Returns what a function of C returned; raises OSError if that says that it failed."""
    if result >= 0:
        return result
    number = ctypes.get_errno()
    limit = "; raise fs.inotify.max_user_watches" if number == errno.ENOSPC else ""
    raise OSError(number, f"{os.strerror(number)}{limit}")


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
