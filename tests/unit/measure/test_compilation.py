"""Checks that what torch.compile compiles while it is timed is told; PyTorch's counters are made up."""

import fnmatch
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from made_up_results import measured

from pytest_gpukern.measure.compilation import CompilationObserver

UTILS = "torch._dynamo.utils"


@pytest.fixture
def compiled(monkeypatch):
    """The metrics of what was compiled; `counters` grow with them."""
    utils = SimpleNamespace(counters={"stats": Counter()}, get_compilation_metrics=list)
    monkeypatch.setitem(sys.modules, UTILS, utils)
    return utils


def compile_anew(utils, reason=None, **known):
    utils.counters["stats"]["unique_graphs"] += 1
    place = {"co_name": "softmax", "co_filename": "/home/me/kernels.py", "co_firstlineno": 7} | known
    utils.get_compilation_metrics = lambda: [SimpleNamespace(**place, recompile_reason=reason)]


@pytest.mark.parametrize(
    ("reason", "count", "told"),
    [
        (None, 1, "softmax (kernels.py:7) while it was timed: give all calls the same shapes and numbers, *"),
        ("0/0: tensor 'x' size mismatch", 1, "*, since a guard failed (tensor 'x' size mismatch):*"),
        (
            "0/1: k == 4    # x + k\nUser stack",
            2,
            "*(kernels.py:7) 2 times *, since a guard failed (k == 4):*",
        ),
    ],
)
def test_what_is_compiled_while_it_is_timed_is_invalid_by_its_name(compiled, reason, count, told):
    compile_anew(compiled)
    observation = CompilationObserver("compilation", None).observe(None, None)
    for _ in range(count):
        compile_anew(compiled, reason)
    invalid = observation.finish(measured()).invalid
    assert fnmatch.fnmatchcase(invalid, f"torch.compile compiled {told}"), invalid


def test_a_release_of_pytorch_that_names_nothing_is_told_as_well(compiled):
    observation = CompilationObserver("compilation", None).observe(None, None)
    compiled.counters["stats"]["unique_graphs"] += 1
    assert observation.finish(measured()).invalid.startswith("torch.compile compiled a function while")


def test_what_was_compiled_before_it_is_timed_or_never_is_no_fault(compiled, monkeypatch):
    compile_anew(compiled)
    assert CompilationObserver("compilation", None).observe(None, None).finish(measured()).invalid is None
    monkeypatch.delitem(sys.modules, UTILS)
    assert CompilationObserver("compilation", None).observe(None, None) is None
    monkeypatch.setitem(sys.modules, UTILS, None)  # as a test forbids its import
    assert CompilationObserver("compilation", None).observe(None, None) is None
