"""Says what a launch of a Triton kernel was given wrongly."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_gpukern.backends.foreign_array import may_be_array

_LAUNCHES = "triton.runtime.jit"
"""The module whose `kernel[grid]` returns a function of a launch's arguments."""


def why_not_launched(error: BaseException) -> str | None:
    """Says what a launch of a Triton kernel was given wrongly, if that led to an error; else returns None.

    Triton finds out far behind the launch, and tells it in words about its own objects.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__ if "triton" in sys.modules else None):
        launch = frame.f_locals if frame.f_globals.get("__name__") == _LAUNCHES else {}
        if {"self", "args", "kwargs"} <= launch.keys():
            return "; ".join(_given_wrongly(launch["self"], launch["args"], launch["kwargs"])) or None
    return None


def _given_wrongly(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Says what is wrong with each argument of a launch, and what to write instead."""
    names, chosen, computed = getattr(kernel, "arg_names", ()), set[str](), set[str]()
    while not inspect.isfunction(kernel) and hasattr(kernel, "fn"):
        for each in getattr(kernel, "configs", ()):
            chosen |= each.all_kwargs().keys()
        computed |= {*getattr(kernel, "values", ())}  # of triton.heuristics
        kernel = kernel.fn
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    label = getattr(kernel, "__name__", "the kernel")
    for name in sorted(chosen & given.keys()):
        remedy = f"leave it out of the call, or {name} out of each triton.Config"
        yield f"{label}: {name}={given[name]!r:.40} is given, but triton.autotune chooses it: {remedy}"
    arrays = [name for name, of in given.items() if may_be_array(of) and not hasattr(of, "data_ptr")]
    if arrays:
        kind = type(given[arrays[0]])
        are = (
            f"{', '.join(arrays)} {'are' if len(arrays) > 1 else 'is'} {kind.__module__}.{kind.__qualname__}"
        )
        remedy = f"pass torch.as_tensor({arrays[0]}), on a GPU with device='cuda'"
        yield f"{label}: {are}, but Triton's kernels take tensors of PyTorch: {remedy}"
    needed = inspect.signature(kernel).parameters.values() if inspect.isfunction(kernel) else ()
    there = {*given, *chosen, *computed}
    missing = [of.name for of in needed if of.default is of.empty and of.name not in there]
    if missing:
        yield f"{label}: no {', '.join(missing)} is given: pass it in the call, such as {missing[0]}=…"
