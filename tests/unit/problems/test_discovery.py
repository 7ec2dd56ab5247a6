"""Variants are found in a problem's folder, with the same ids whether or not their files can be imported."""

from __future__ import annotations

import importlib
import itertools
import sys
from dataclasses import replace
from unittest import mock

import pytest

from pytest_gpukern import ProblemError
from pytest_gpukern.problems import discovery
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.problems.discovery import load_variants

PROBLEM = """
import numpy as np
from pytest_gpukern import Axis, Problem

p = Problem("p", version=1, axes={"n": Axis((4,), (8,))}, make_inputs=lambda rng, n: {"a": np.zeros(n)},
            outputs=lambda n: {"out": ((n,), "float64")}, reference=lambda a: a, package=__package__)
"""

ON_HOST = """
from .problem import p

@p.variant("host", allocates=True)
def plain(a):
    return lambda: a.copy()
"""

ON_NUMBA = """
from {module} import something
from .problem import p

@p.variant("numba", block=(64, 2 * 64), max_size={{"n": 10**8}}, needs_gpu="atomics", scopes=("kernel",))
def fast(a, out, block):
    return lambda: None

@p.variant("numba", host_data=True, min_size={{"n": 1}}, determinism="bitwise")
@p.variant("cupy")
def shared(a, out):
    return lambda: None

def helper():
    return 1
"""

WRONG = """
from {module} import something
from .problem import p

@p.wrong("numba", expected_fault="not written", block=(64,), allocates=True)
def does_nothing(out, block):
    return lambda: None

@p.wrong("numba", detected_by="racecheck", needs_gpu="races")
def races(out):
    return lambda: None
"""

numbers = itertools.count()


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Makes a package with these files; returns its problem, not yet loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def make(**files):
        name = f"made_up_suite_{next(numbers)}"
        folder = tmp_path / name
        folder.mkdir()
        for stem, text in {"__init__": "", "problem": PROBLEM, **files}.items():
            (folder / f"{stem}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.problem").p

    yield make
    for name in set(sys.modules) - before:
        if name.startswith(("made_up_suite", "library_that_is_there")):
            del sys.modules[name]


@pytest.fixture
def there(tmp_path, monkeypatch):
    """Makes the library of a variants file importable."""
    (tmp_path / "library_that_is_there.py").write_text("something = 1\n")
    return "library_that_is_there"


def load(problem, *, unusable=(), missing=(), no_gpu=None):
    played = {"installed": lambda module: module not in missing, "missing_gpu_in_error": lambda error: no_gpu}
    with mock.patch.multiple(discovery, **played):
        load_variants(problem, lambda backend: f"{backend} cannot run" if backend in unusable else None)
    return problem


def ids(problem):
    return [case.id for wrong in (False, True) for case in cases_of(problem, "smoke", wrong=wrong)]


def as_declared(variants):
    """What the decorators say, whether the function is there or not."""
    return {label: replace(each, prepare=None, unavailable=None) for label, each in variants.items()}


def files_for(module):
    return {
        "on_host": ON_HOST,
        "on_numba": ON_NUMBA.format(module=module),
        "wrong": WRONG.format(module=module),
    }


def test_files_that_import_register_their_variants(suite, there):
    problem = load(suite(**files_for(there)))
    assert sorted(problem.variants.right) == ["cupy.shared", "host.plain", "numba.fast", "numba.shared"]
    assert list(problem.variants.broken) == ["numba.does_nothing", "numba.races"]
    assert all(variant.unavailable is None for variant in problem.variants.right.values())


def test_ids_and_declarations_read_from_the_source_equal_those_of_the_import(suite, there):
    imported = load(suite(**files_for(there)))
    read = load(suite(**files_for("lib_nobody_has")), missing=["lib_nobody_has"])
    assert sorted(ids(imported)) == sorted(ids(read))
    assert len(ids(read)) == 7
    assert as_declared(imported.variants.right) == as_declared(read.variants.right)
    assert as_declared(imported.variants.broken) == as_declared(read.variants.broken)


def test_a_file_is_not_imported_where_none_of_its_backends_can_run(suite):
    problem = suite(on_numba=ON_NUMBA.format(module="lib_nobody_has"))
    load(problem, unusable=["numba", "cupy"])
    assert {variant.unavailable for variant in problem.variants.right.values()} == {"numba cannot run"}


@pytest.mark.parametrize("other", ["cupy", "numba"])
def test_a_file_is_imported_where_one_of_its_backends_can_run(suite, there, other):
    problem = load(suite(on_numba=ON_NUMBA.format(module=there)), unusable=[other])
    assert {variant.unavailable for variant in problem.variants.right.values()} == {None}


@pytest.mark.parametrize(
    "statement", ["import lib.sub as x", "from lib.sub import x", "import os, lib", "import lib"]
)
def test_every_form_of_import_is_looked_at(suite, statement):
    problem = load(suite(on_host=f"{statement}\n{ON_HOST}"), missing=["lib"])
    assert problem.variants.right["host.plain"].unavailable == "lib is not installed"


def test_wrong_files_of_any_ending_and_nothing_else_are_looked_at(suite):
    problem = load(
        suite(
            wrong_on_host=ON_HOST.replace('variant("host"', 'wrong("host", expected_fault="not written"'),
            helpers="raise AssertionError('imported')",
            test_it="raise AssertionError('imported')",
        )
    )
    assert list(problem.variants.broken) == ["host.plain"]


def test_a_problem_without_a_folder_is_left_alone(suite):
    problem = suite(on_host=ON_HOST)
    problem.package = None
    assert load(problem).variants.right == {}


@pytest.mark.parametrize("package", ["", "nobody.imported.this"])
def test_a_package_that_is_none_is_refused_with_the_remedy(suite, package):
    problem = suite()
    problem.package = package
    with pytest.raises(ProblemError, match=r"problem 'p'.*is not an imported package; pass __package__"):
        load(problem)


@pytest.mark.parametrize("argument", ["block=SIZES", "max_size={'n': max(1, 2)}", "needs_gpu=f'{1}'"])
def test_an_argument_that_is_no_literal_is_refused_with_file_and_line(suite, argument):
    text = ON_HOST.replace("allocates=True", argument)
    with pytest.raises(ProblemError, match="the decorator of plain takes literals only") as error:
        load(suite(on_host=text))
    assert error.value.place.endswith("on_host.py:4")


@pytest.mark.parametrize(
    ("typo", "message"),
    [
        ({"block=(64": "blok=(64"}, r"blok=\(64, 128\) .* \(max_size, .* \(a, out, block\)"),
        ({'"n": 10': '"m": 10'}, "max_size names 'm'"),
        ({'"numba", block': '"nubma", block'}, "backend 'nubma' is none of host, "),
        ({"scopes=": "scope="}, r"scope=\('kernel',\) is neither an argument of the decorator"),
    ],
)
@pytest.mark.parametrize("imported", [True, False])
def test_a_typo_is_refused_with_file_and_line_whether_or_not_its_file_is_imported(
    suite, there, typo, message, imported
):
    ((old, new),) = typo.items()
    text = ON_NUMBA.format(module=there)
    assert text.count(old) == 1
    with pytest.raises(ProblemError, match=message) as error:
        load(suite(on_numba=text.replace(old, new)), missing=[] if imported else [there])
    assert error.value.place.endswith("on_numba.py:5")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import json.nonsense\n", ModuleNotFoundError),
        ("from json import nonsense\n", ImportError),
        ("1 / 0\n", ZeroDivisionError),
        ("def broken(:\n", SyntaxError),
    ],
)
def test_a_real_error_of_a_variants_file_propagates(suite, text, error):
    with pytest.raises(error):
        load(suite(on_host=ON_HOST + text))


def test_an_error_that_means_no_gpu_is_the_reason_of_every_variant_even_of_those_defined_before_it(suite):
    text = ON_HOST + "\nraise RuntimeError('CUDA driver')\n" + ON_HOST.replace("plain", "later")
    problem = load(suite(on_host=text), no_gpu="no GPU: no driver")
    assert {name: variant.unavailable for name, variant in problem.variants.right.items()} == {
        "host.plain": "no GPU: no driver",
        "host.later": "no GPU: no driver",
    }


def test_other_decorators_are_no_variants(suite):
    text = "import functools\n" + ON_HOST + "\n@functools.lru_cache(maxsize=1)\ndef cached():\n    return 1\n"
    assert list(load(suite(on_host=text), unusable=["host"]).variants.right) == ["host.plain"]
