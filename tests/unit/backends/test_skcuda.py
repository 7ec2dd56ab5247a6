"""What stands in while scikit-cuda is imported, what is left of it afterwards, and what is said of it.

Each test runs in a process of its own: imports cannot be taken back.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PACKAGE = {
    "__init__.py": """
try:
    __import__("pkg_resources").declare_namespace(__name__)
except ImportError:
    pass
from .version import __version__
""",
    "version.py": """
import pkg_resources
__version__ = pkg_resources.require("pytest")[0].version
unknown = pkg_resources.require("nobody-has-this")[0].version
""",
    "cublas.py": r"""
import ctypes, re, warnings
for name in ["libcublas.so", "libcublas.so.10.1"]:
    try:
        library = ctypes.cdll.LoadLibrary(name)
    except OSError:
        pass
    else:
        break
else:
    raise OSError("cublas library not found")
invalid_escape = "\s"
warnings.warn("creating CUBLAS context to get version number")
""",
    "misc.py": """
import numpy as np
types = [np.typeDict[t] for t in np.typecodes["AllInteger"] + np.typecodes["AllFloat"]]
assert types[-1] is np.clongdouble or np.longdouble in types
""",
    "linalg.py": "from . import cublas, misc\n",
}
"""What scikit-cuda 0.5.3 does when it is imported, as far as that fails today."""

PROLOGUE = """
import ctypes, ctypes.util, json, sys, warnings
warnings.simplefilter("error")
import numpy as np
from pytest_gpukern.backends import pycuda, skcuda_imports as skcuda_compat
LIBRARY = ctypes.util.find_library("c")
asked = []
def load_library(name):
    asked.append(name)
    return LIBRARY
pycuda.load_library = load_library
def state():
    return {
        "pkg_resources": "pkg_resources" in sys.modules,
        "typeDict": hasattr(np, "typeDict"),
        "LoadLibrary": "LoadLibrary" in vars(ctypes.cdll),
        "filters": len(warnings.filters),
    }
before = state()
def import_it():
    skcuda_compat.supply()
    import skcuda.linalg
"""


@pytest.fixture
def run(tmp_path):
    """Runs Python text after the prologue, with the package above on the path; returns what it printed."""
    folder = tmp_path / "skcuda"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)

    def in_a_process(text):
        script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROLOGUE}{text}"
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return in_a_process


def test_it_imports_says_what_stood_in_and_leaves_nothing_behind(run):
    found = run("""
notes = [skcuda_compat.notes()]
skcuda_compat.supply()
import skcuda.misc
import skcuda.linalg
notes.append(skcuda_compat.notes())
print(json.dumps([notes, asked, skcuda.version.__version__, skcuda.version.unknown, before, state()]))
""")
    (nothing, (note,)), asked, version, unknown, before, after = found
    assert nothing == []
    assert note.startswith(f"scikit-cuda {pytest.__version__}: we supplied pkg_resources, ")
    assert asked == ["cublas"]
    assert (version, unknown) == (pytest.__version__, "unknown")
    assert before == after, "afterwards everything else is as before"
    assert not any((after["pkg_resources"], after["typeDict"], after["LoadLibrary"]))


def test_what_a_user_supplied_himself_stays(run):
    found = run("""
import types
mine = sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")
codes = np.typeDict = {code: np.dtype(code).type for code in np.typecodes["All"]}
loader = ctypes.cdll.LoadLibrary
ctypes.cdll.LoadLibrary = own = lambda name: loader(LIBRARY)
import_it()
kept = [sys.modules["pkg_resources"] is mine, np.typeDict is codes, ctypes.cdll.LoadLibrary is own]
print(json.dumps([asked, kept]))
""")
    assert found == [[], [True, True, True]]


def test_a_library_that_is_nowhere_is_scikit_cudas_own_error_and_leaves_nothing_behind(run):
    found = run("""
pycuda.load_library = lambda name: None
try:
    import_it()
except OSError as error:
    print(json.dumps([str(error), before == state()]))
""")
    assert found == ["cublas library not found", True]
