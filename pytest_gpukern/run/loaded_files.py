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
import pkgutil
import re
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.machinery import PathFinder
from itertools import pairwise, product
from pathlib import Path
from posixpath import basename, dirname, join, realpath  # as git writes paths
from typing import Any

import msgspec

from pytest_gpukern.gpu.fingerprint import asked_of_git
from pytest_gpukern.package import FOLDER

_BY_NAME = r"(\w*_)?import(_\w*)?|importorskip|resolve_name|run_module|locate"
"""Functions that import what their first argument names."""
_BY_MORE = (
    r"run_path|spec_from_\w+|\w*FileLoader|(load|exec)_(module|source)|attach_stub|instantiate|EntryPoint"
)
_IMPORTS = re.compile(f"{_BY_NAME}|{_BY_MORE}|entry_points|walk_packages")
"""These, and functions that import what a path, a file or an object names."""
_NAME = re.compile(r"[\w-][\w.:-]*")
"""A string that may name a module."""
_CACHED = re.compile(r"__pycache__/([^/]+?)\.[a-z]+-\d[^/]*\.pyc$")
"""A module's compiled code, by Python or by pytest."""
_OF_PYTEST = re.compile(r"(^|/)(\.?pytest\.(ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|\.git\w+)$")
"""What another worker reads when it starts, itself or by git."""
_OF_TOOLS = re.compile(r"(^|/)(__pycache__|\.(git|pytest_cache|hypothesis|mypy_cache|benchmarks))(/|$)")
_NAME_OF_RECORD = re.compile(r"[^/]\.[\w-]+\.json$")
_RECORDS = ({"schema", "problem", "device_model"}, {"schema", "problem", "cases"})
"""Keys of our records: of times, and of what kernels compile to."""
_MOST_FOLDERS = 8192
"""As many as Linux lets a user watch, where nobody has raised that."""
_GENERATED = re.compile(r"/(\.triton|torchinductor_[^/]+)/")
"""Folders of code that Triton and PyTorch make from sources that count, by versions that count."""
_SYSTEM = ("/usr/", "/lib", "/opt/", "/nix/")
"""Where the machine's image has shared objects, as CUDA's libraries; the driver's version is compared."""
Loads = tuple[frozenset[str], str]
"""Paths from the top of the repository, or absolute elsewhere; and why there may be more, or nothing."""


class Project:
    """Knows the files of a repository, and what its modules import.

    Attributes:
        top: its top folder.
        changed: files that differ from a commit; they count also if git does not have them.
        read: files that it has read itself.
    """

    def __init__(self, top: Path) -> None:
        self.top, self.changed, self.read = top, frozenset[str](), set[str]()
        self._own = f"{self.path_of(FOLDER)}/"  # which measures what a test does, and is no part of it
        self._imports_of = functools.cache(self._imports)
        self._named = functools.cache(self._files_named)
        self.hash_of = functools.cache(self._hash_of_file)

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
        start, known = self.path_of(test), self.tracked | self.changed
        files, unsure = self.imported(start, *opened)
        beginnings = [join(dirname(start), "")]  # of all in the top folder
        for pattern in reads:
            beginnings.append(self.path_of(join(self.top, dirname(start), re.split(r"[*?[]", pattern)[0])))
            if not any(path.startswith(beginnings[-1]) for path in self.comparable | self.changed):
                unsure = unsure or f"reads={pattern!r} names no file of git"
        return files | {path for path in known if path.startswith((*beginnings,))}, unsure

    def imported(self, *starts: str, texts: bool = True) -> Loads:
        """Returns some files and what they import, by themselves or by what they import.

        With `texts`, what their texts may name counts, too: perhaps it is imported, perhaps it is not.
        """
        todo, files, unsure = [*starts], set[str](), ""
        while todo:
            path = todo.pop()
            if path not in files and not path.startswith(self._own):
                files.add(path)
                imports, named, why = self._imports_of(path)
                untold = "" if path in self.comparable else f"git cannot tell whether {path} changed"
                unsure = unsure or untold or why
                todo += [*imports, *(named if texts else ())]
        return frozenset(files), unsure

    def _imports(self, path: str) -> tuple[frozenset[str], frozenset[str], str]:
        """Returns what a module imports, what its texts may name, and why it may import more."""
        parts, unsure, named_here, is_module = path.split("/"), "", set[ast.expr](), path.endswith(".py")
        above = ["/".join(parts[:count]) for count in range(len(parts))]
        roots, size = {*above, *self.roots}, 0 if _OF_PYTEST.search(path) else 1 << 18
        self.read.add(path)
        try:
            with (self.top / path).open("rb") as file:
                content = file.read(-1 if is_module else size)
            text = "" if b"\0" in content else content.decode(errors="replace")
            tree = ast.parse(content) if is_module else ast.Constant(text)
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return frozenset(), frozenset(), f"{path} cannot be read"
        meant, named = (
            {*product(above, ("__init__", "conftest"))} if is_module else set(),
            set[tuple[str, str]](),
        )
        for node in ast.walk(tree):  # what calls a function comes before its name
            match node:
                case ast.Import():
                    meant |= {*product(roots, (alias.name for alias in node.names))}
                case ast.ImportFrom(module=module, level=level):
                    names = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
                    meant |= {*product(above[-level:][:1] if level else roots, names)}
                case ast.Constant(str(text)):
                    named |= {*product(roots, _named_in(text))}
                case ast.List(elts) | ast.Tuple(elts):  # as [sys.executable, "-m", "a.module"]
                    texts = [of.value for of in elts if isinstance(of, ast.Constant)]
                    meant |= {*product(roots, (str(of) for m, of in pairwise(texts) if m == "-m"))}
                case ast.Call(ast.Name(called) | ast.Attribute(attr=called), [ast.Constant(str(text)), *_]):
                    if re.fullmatch(_BY_NAME, called) and _NAME.fullmatch(text):
                        meant |= {*product(roots, _named_in(text))}
                        named_here.add(node.func)
                case ast.Name(called) | ast.Attribute(attr=called) | ast.alias(called, str()):
                    runs_code = isinstance(node, ast.Name) and called in ("exec", "eval")
                    if node not in named_here and (runs_code or _IMPORTS.fullmatch(called)):
                        unsure = f"{path}:{node.lineno} imports what its source does not name"
                case ast.Subscript(ast.Attribute(ast.Name("sys"), "modules"), index, ast.Load()):
                    if not isinstance(index, ast.Constant) and ast.unparse(index) != "__name__":
                        unsure = f"{path}:{node.lineno} imports what its source does not name"
        beside = self._named(above[-1], "*") if is_module else ()
        variants = frozenset(of for of in beside if basename(of).startswith(("on_", "wrong")))
        files = (frozenset[str]().union(*(self._named(*each) for each in of)) for of in (meant, named))
        return variants | next(files), next(files), unsure

    @functools.cached_property
    def roots(self) -> frozenset[str]:
        """The folders of the repository from which Python imports when this is asked for first."""
        installed = ("site-packages", "dist-packages")
        on_path = {self.path_of(entry) for entry in sys.path if basename(entry) not in installed}
        return frozenset(folder for folder in on_path if not folder.startswith("/"))

    def _files_named(self, folder: str, name: str) -> frozenset[str]:
        """Returns the modules, extensions and packages in a folder that a name may mean; `*` means any."""
        first, _, rest = name.partition(".")
        at, files = [str(self.top / folder)], set[str]()
        for module in [of.name for of in pkgutil.iter_modules(at)] if first == "*" else [first]:
            spec = PathFinder.find_spec(module, at)
            if spec is not None and spec.origin is not None:
                files.add(self.path_of(spec.origin))
            for package in (spec and rest and spec.submodule_search_locations) or ():
                files |= self._named(self.path_of(package), rest)
        return frozenset(files)

    def _hash_of_file(self, path: str) -> str | None:
        """Returns a hash of a file's content; None for a record of ours."""
        self.read.add(path)
        try:
            content = (self.top / path).read_bytes()
        except OSError:
            return ""
        keys = set[str]()
        if _NAME_OF_RECORD.search(path):
            with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # it is no record
                keys = {*msgspec.json.decode(content, type=dict[str, msgspec.Raw])}
        is_record = any(keys >= record for record in _RECORDS)
        return None if is_record else hashlib.sha256(content).hexdigest()

    def hash_of_loads(self, test: Path, reads: Sequence[str], opened: Iterable[str]) -> str | None:
        """Returns one hash over all that a test loads; None where it is not sure.

        Records of ours are no part of what a test does, wherever a run keeps them and whoever reads them.
        """
        files, unsure = self.loads(test, reads, [of for of in opened if self.hash_of(of) is not None])
        hashes = ((path, self.hash_of(path)) for path in sorted(files))
        text = "".join(f"{path}\0{sha256}\0" for path, sha256 in hashes if sha256 is not None)
        return None if unsure else hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _named_in(text: str) -> set[str]:
    """Returns what a text may name as a module: itself, `lib.k:run` in it, or any word where it imports."""
    is_source = _NAME.fullmatch(text) or "import " in text
    names = _NAME.findall(text) if is_source else re.findall(r"[^\W\d]\w*(?:[.:]\w+)+", text)
    for module, those in re.findall(r"from\s+([\w.]+)\s+import[\s(]+([\w,\s]+)", text):
        names += [f"{module}.{name}" for name in _NAME.findall(those)]
    return {name.partition(":")[0] for name in names}


BEFORE, BETWEEN = "before tests are collected", "between tests"
"""When something was opened, besides in a test, which its name tells."""


class OpenedFiles:
    """Sees which files below a project's top folder anybody opens.

    Attributes:
        project: whose files they are.
        rootdir: what names of tests are relative to.
        why_blind: why it does not see all, in words; empty if it does.
    """

    _OPENED, _CREATED, _OVERFLOW, _FOLDER = 0x20, 0x100 | 0x80, 0x4000, 0x40000000
    """IN_OPEN, IN_CREATE | IN_MOVED_TO, IN_Q_OVERFLOW and IN_ISDIR of <sys/inotify.h>."""

    def __init__(self, project: Project, rootdir: Path) -> None:
        self.project, self.rootdir, self.why_blind, self._queue = project, rootdir, "", -1
        self._folders, self._made, self._began_s = dict[int, str](), set[str](), time.time()
        self._seen, self._loaded, self._held = set[str](), set[str](), tuple[object, ...]()
        self._new = defaultdict[str, set[str]](set)
        self._of_files = dict[str, set[str]]()  # test file → what was opened while its tests were collected
        self._imported_by = functools.cache(
            lambda *files, texts=False: project.imported(
                *(project.path_of(rootdir / of) for of in files), texts=texts
            )[0]
        )
        self._when, self._among_workers = BEFORE, os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1"
        self._opened = defaultdict[str, set[str]](set)
        project.comparable  # noqa: B018 - git reads its own files now
        try:
            self._watch()
        except (OSError, AttributeError) as error:
            self.why_blind = f"inotify cannot be used here: {error}"
        loaded = sorted(path for path in self._strangers() if not path.startswith("/"))
        if loaded:  # what it has read nobody saw
            self.why_blind = f"{loaded[0]} was loaded before the root conftest, which can load it instead"

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
            if watch < 0 or len(self._folders) == _MOST_FOLDERS:
                raise OSError(f"it watches {len(self._folders)} folders and no more, by its limits")
            self._folders[watch] = self.project.path_of(at)
        os.close(os.open(top, os.O_RDONLY))
        try:
            os.read(self._queue, 1 << 16)
        except BlockingIOError:  # some sandboxes accept a watch and tell nothing
            self.why_blind = "inotify tells nothing here"

    def enter(self, when: str = BETWEEN) -> None:
        """Notes what was opened by now, and takes what is opened later for opened at another time.

        A module, fixture or plugin may keep for every test what was opened before tests, or between them.
        """
        opened = self._looked()
        if self._when not in (BEFORE, BETWEEN) and "::" not in self._when:
            self._of_files[self._when] = opened.copy()
        self._when = when

    def _looked(self) -> set[str]:
        """Returns what was opened by now since `enter`."""
        opened, new = self._opened[self._when], self._strangers()
        self._new[self._when] |= new
        opened |= self._events() | new
        self._seen |= opened
        return opened

    def _imports(self, *, texts: bool = False) -> frozenset[str]:
        """Returns what test files import, or with `texts` may import; sees nothing of what that reads."""
        with self.looking_away():
            return self._imported_by(*self._of_files, texts=texts)

    def _ours(self, when: str, opened: set[str]) -> set[str]:
        """Returns what was opened then, and among workers only what this one may have opened.

        A module that test files import is left out: another worker may import it, or read what it imports. It
        stays if it was new in this process.
        """
        if not self._among_workers:
            return opened
        imports = self._imports(texts=True)
        return {of for of in opened if of not in imports or not of.endswith(".py")} | self._new[when]

    def of_test(self) -> set[str]:
        """Returns what was opened in a test and by its file, and all else that may have been kept.

        Modules that test files import do not count as kept, since other processes open them, too. Paths are
        from the top of the repository, or absolute for what lies elsewhere.
        """
        of_test, file, imports = self._looked(), self._when.partition("::")[0], self._imports()
        opened = self._ours(self._when, of_test) | self._ours(file, self._of_files.get(file, set()))
        return opened | {of for of in self._seen if of not in imports or not of.endswith(".py")}

    def carried(self) -> dict[str, Any]:
        """Returns as plain JSON what travels on the report of a test's teardown."""
        self.enter()
        opened, self._opened = self._opened, defaultdict(set)
        ours = {when: sorted(self._ours(when, paths)) for when, paths in opened.items()}
        return {"opened": ours, "blind": self.why_blind}

    @contextmanager
    def looking_away(self, from_files: Set[str] = frozenset()) -> Iterator[None]:
        """Notes nothing, while entered, of these files, nor of those that the project reads itself."""
        self._opened[self._when] |= self._events()
        self.project.read = {*from_files}
        yield
        self._opened[self._when] |= self._events() - self.project.read

    def _events(self) -> set[str]:
        """Returns what was opened below the top since the last look.

        A file that git does not have does not count if this run made it: the repository does not hold it.
        """
        opened, tracked = set[str](), self.project.tracked
        with suppress(OSError):  # there is no more, or nobody looks any longer
            while content := os.read(self._queue, 1 << 16):
                while content:
                    watch, mask, _, length = struct.unpack_from("iIII", content)
                    name = os.fsdecode(content[16 : 16 + length].rstrip(b"\0"))
                    content = content[16 + length :]
                    if mask & self._OVERFLOW:
                        self.why_blind = "more files were opened at once than inotify tells"
                    elif name and not mask & self._FOLDER:
                        path = join(self._folders[watch], name)
                        of = _CACHED.sub(r"\1.py", path)
                        if mask & self._CREATED:
                            self._made.add(path)
                        elif of in tracked or not (of in self._made or _OF_TOOLS.search(of)):
                            opened.add(of)
        return {of for of in opened if not (self._among_workers and _OF_PYTEST.search(of))}

    def _strangers(self) -> set[str]:
        """Returns new modules and shared objects that no version stands for."""
        held = tuple(map(id, sys.modules.values())), _amount_of_code()
        if self.why_blind or (held == self._held and held[1]):
            return set()
        self._held = held
        maps = Path("/proc/self/maps")
        mapped = re.findall(rb"(/.*\.so[.\d]*)$", maps.read_bytes() if maps.exists() else b"", re.MULTILINE)
        modules = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
        # Python loads by absolute paths; PyTorch gives names alone to modules that no file holds.
        files = (file for file in (*modules, *map(os.fsdecode, mapped)) if isinstance(file, str))
        loaded = {file for file in files if file.startswith("/")}
        new, self._loaded = loaded - self._loaded, loaded
        # What was made in this run was made of what was seen.
        made = {of for of in new if Path(of).exists() and Path(of).stat().st_ctime > self._began_s}
        return {self.project.path_of(file) for file in new - made if not _is_installed(file)}

    def close(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)
        self._queue = -1


def _amount_of_code() -> str:
    """Returns how much code of shared objects there is: to list them takes 3 ms in a process with PyTorch."""
    status = Path("/proc/self/status")
    found = re.search(r"VmLib:.*", status.read_text() if status.exists() else "")
    return found[0] if found else ""  # as in some sandboxes


@functools.cache
def _installed() -> frozenset[str]:
    """Returns all files of installed distributions, whose versions are compared."""
    return frozenset(
        f"{folder}/{line.partition(',')[0]}"
        for of in metadata.distributions()
        for folder in [realpath(str(of.locate_file("")))]
        for line in (of.read_text("RECORD") or "").splitlines()
    )


def _is_installed(file: str) -> bool:
    """Returns whether a version stands for a module or a shared object: Python's, a distribution's, ours."""
    place = realpath(file)
    if place in _installed() or _GENERATED.search(place) or place.endswith("/_virtualenv.py"):
        return True
    others = (f"{realpath(sys.base_prefix)}/lib", f"{realpath(FOLDER)}/", "/etc/python")
    of_image = place.startswith(_SYSTEM) and not place.endswith(".py")
    return "-packages/" not in place and (of_image or place.startswith(others))
