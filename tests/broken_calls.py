"""Kernels, right and broken, in tables: tried on host arrays, in whole runs, in the simulator, on a GPU."""

import fnmatch
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).read_text(encoding="utf-8")
"""For runs in other processes, which do not find this module."""


def compiled(does, since=0):
    """What thread `i` does in launch `k`, as Numba can compile it; before launch `since` it doubles.

    `right` is what the thread should leave in `out[i]`, if nothing else is said.
    """
    body = f"right = 2 * x[i]\n    if k < {since}:\n        out[i] = right\n    el{does}"
    exec(f"def thread(i, k, x, out):\n    {body}", {"NAN": float("nan")}, found := {})
    return found["thread"]


class Right(NamedTuple):
    """A kernel that passes: the arguments of its marker, what it leaves where 7 was, whether bits stay."""

    name: str
    does: str
    declared: dict
    leaves: Callable
    determinism: str = "bitwise"


RIGHT = (
    Right("by name", "if True: out[i] = right", {"outputs": "out"}, lambda x: 2 * x),
    Right(
        "by position", "if True: out[i] = right", {"outputs": -1, "determinism": "bitwise"}, lambda x: 2 * x
    ),
    Right("updated", "if True: out[i] += right", {"inout": 1, "determinism": "bitwise"}, lambda x: 7 + 2 * x),
    Right(
        "in part",
        "if 0 < i < x.size - 1: out[i] = right",
        {"outputs": "out", "written": {"out": slice(1, -1)}},
        lambda x: [7, *2 * x[1:-1], 7],
    ),
    Right(
        "within the tolerance",
        "if True: out[i] = right * (1 + k % 2 * 2e-7)",
        {"outputs": "out"},
        lambda x: 2 * x,
        "tolerant",
    ),
)


class Broken(NamedTuple):
    """A kernel that is rejected.

    Attributes:
        fault: what is wrong with a call of it; None if that depends on what the output holds.
        words: a pattern of what its diagnosis says; `{n}` is the number of elements, `{last}` one less.
        as_variant: the same of a variant, which meets other contents.
        declared: further arguments of the marker, or of a variant.
    """

    name: str
    does: str
    fault: str | None
    words: str
    as_variant: str = ""
    declared: dict = {}

    @property
    def is_always_wrong(self):
        """Whether each launch is wrong by itself, whatever the output holds."""
        return self.fault not in (None, "not deterministic")

    def says(self, message, n, *, as_variant=False):
        """Whether a message about `n` elements has the words."""
        words = (as_variant and self.as_variant) or self.words
        return fnmatch.fnmatchcase(message, f"*{words.format(n=n, last=n - 1).replace('[', '[[]')}*")


NONE_OF_THEM = "not written", "out: {n} of {n} elements "
NOT_THE_LAST = "not written", "out: 1 of {n} elements *, the first at [{last}]"
SOME = None, " of {n} elements "
STALE = "out: stale result"
BROKEN = (
    Broken("writes nothing", "if False: pass", *NONE_OF_THEM),
    Broken("writes once", "if k == 0: out[i] = right", *NONE_OF_THEM),
    Broken("leaves the last", "if i < x.size - 1: out[i] = right", *NOT_THE_LAST),
    Broken("triples", "if True: out[i] = 3 * x[i]", "wrong values", ": wrong values: {n} of {n} elements "),
    Broken(
        "leaves a NaN",
        "if True: out[i] = NAN if i == 2 else right",
        "unexpected NaN",
        ": unexpected NaN: 1 of {n} elements *first mismatch at [2]: *, actual nan",
    ),
    Broken(
        "writes its input",
        "if True: out[i], x[i] = right, x[i] + (i == 3)",
        "input modified",
        "input modified: the * changed ",
    ),
    Broken(
        "differs",
        "if True: out[i] = right * (1 + k * 1e-6)",
        "not deterministic",
        "out: not deterministic: 2 results from ",
        declared={"determinism": "bitwise"},
    ),
    # right over some contents only
    Broken("writes over NaN", "if out[i] != out[i]: out[i] = right", *SOME),
    Broken("adds to numbers", "if True: out[i] = right if out[i] != out[i] else out[i] + right", *SOME),
    Broken("keeps what is larger", "if not out[i] > right: out[i] = right", *SOME),
    Broken("keeps what is smaller", "if not out[i] < right: out[i] = right", *SOME, STALE),
    Broken("takes zero for done", "if out[i] != 0: out[i] = right", *SOME),
    Broken("takes what is near", "if not abs(out[i] - right) <= right: out[i] = right", *SOME, STALE),
)


def on_host(thread):
    """A call that runs a thread for each element, one after the other."""
    launches = itertools.count()

    def call(x, out):
        k = next(launches)
        for i in range(x.size):
            thread(i, k, x, out)

    return call


def on_device(thread):
    """A call that launches it by Numba, in the simulator or on the GPU."""
    from numba import cuda

    inside, launches = cuda.jit(device=True)(thread), itertools.count()

    @cuda.jit
    def kernel(k, x, out):
        i = cuda.grid(1)
        if i < out.size:
            inside(i, k, x, out)

    return lambda x, out: kernel[-(-out.shape[0] // 256), 256](next(launches), x, out)


def module(launcher, n, libraries, setup):
    """Source of tests that call each kernel on arrays of `n` elements, broken ones also right at first.

    `setup` defines functions, of these names, that make an array of a library.
    """
    return f"""{setup}
import numpy as np
import pytest
from broken_calls import BROKEN, RIGHT, compiled, {launcher}

host = np.linspace(1, 2, {n}, dtype=np.float32)

def marked(row):
    declared = {{"outputs": "out", **row.declared}} if row in BROKEN else row.declared
    return pytest.param(row, id=row.name, marks=pytest.mark.gpu_benchmark(**declared))

libraries = pytest.mark.parametrize("made", [{", ".join(libraries)}])

@libraries
@pytest.mark.parametrize("row", [marked(row) for row in RIGHT])
def test_right(gpu_benchmark, row, made):
    out = made(np.full_like(host, 7))
    gpu_benchmark({launcher}(compiled(row.does)), made(host), out)
    gpu_benchmark.verify(out, row.leaves(host))

@libraries
@pytest.mark.parametrize("since", [0, 5])
@pytest.mark.parametrize("row", [marked(row) for row in BROKEN])
def test_broken(gpu_benchmark, row, since, made):
    x, out = made(host.copy()), made(np.zeros_like(host))
    gpu_benchmark({launcher}(compiled(row.does, since)), x, out)
    gpu_benchmark.verify(out, 2 * host)
"""


def judged(results, n, libraries, *, timed, rows=BROKEN):
    """Asserts that right ones PASSED, and that broken ones are INCORRECT in the words of their rows.

    What is right at first is found if it was `timed`, and if it is wrong over any contents.
    """
    found = {each["case"]["id"].partition("/")[2]: each for each in results}
    for row in RIGHT:
        for library in libraries:
            each = found[f"test_right[{row.name}-{library}]"]
            (error,) = each["errors"].values()
            assert (each["correctness"], error["determinism"]) == ("PASSED", row.determinism)
    told = {name: each["diagnosis"] for name, each in found.items()}
    for row in rows:
        for library in libraries:
            at_once, later = (told[f"test_broken[{row.name}-{since}-{library}]"] for since in (0, 5))
            assert row.says(at_once, n)
            if row.is_always_wrong:
                assert row.says(later, n) if timed else later is None
                assert not timed or row.fault != "not written" or ", in a timed call" in later
