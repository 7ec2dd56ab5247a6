"""Shortens the traceback of a failed test to the frames that its author can do something about."""

from __future__ import annotations

import itertools
import linecache
import sys
from types import TracebackType
from typing import Any

import pytest

from pytest_gpukern.session.item import may_use_gpu

_US = "pytest_gpukern"


def shorten(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Has pytest show an error at the user's lines; a mistake of ours keeps all frames."""
    if not item.config.getoption("fulltrace", False):
        call.excinfo = call.excinfo and _shortened(item, call.excinfo)
        kept = getattr(item, "_excinfo", None) or []  # unittest's, which pytest prefers
        kept[:] = [_shortened(item, each) for each in kept]


def _shortened(item: pytest.Item, shown: pytest.ExceptionInfo[Any]) -> pytest.ExceptionInfo[Any]:
    error, frames = shown.value, [shown.tb]
    while frames[-1].tb_next is not None:
        frames.append(frames[-1].tb_next)
    others = [at for at in frames if _package(at) != _US]
    if "triton" in sys.modules and may_use_gpu(item):
        from pytest_gpukern.backends.torch import why_not_launched

        if why := why_not_launched(error):
            error = TypeError(why)
            others = [*itertools.takewhile(lambda at: _package(at) != "triton", others)]
    if all(map(_is_of_a_library, others)):
        return shown
    if _package(frames[-1]) == _US:
        if not _refuses(frames[-1]):
            return shown
        while _is_of_a_library(others[-1]):
            others.pop()
    linked = None
    for at in reversed(others):
        linked = TracebackType(linked, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return pytest.ExceptionInfo.from_exception(error.with_traceback(linked))


def _refuses(at: TracebackType) -> bool:
    """Says whether a frame of ours refuses what it was given, or has called what users wrote."""
    line = linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno)
    return line.lstrip().startswith("raise ") or "__tracebackhide__" in at.tb_frame.f_locals


def _is_of_a_library(at: TracebackType) -> bool:
    return "-packages" in at.tb_frame.f_code.co_filename or _package(at) in sys.stdlib_module_names


def _package(at: TracebackType) -> str:
    return str(at.tb_frame.f_globals.get("__name__")).partition(".")[0]
