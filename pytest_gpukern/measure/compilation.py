"""Sees whether `torch.compile` compiles a function anew while it is timed.

Its guards hold shapes, strides and Python values. A call that they do not fit waits for the compiler, and a
call after too many of them runs uncompiled.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpukern.measure.observers import Observation, ObservedCall, Observer, Seen
from pytest_gpukern.timers.timer import Timer
from pytest_gpukern.values.result import Measurement

_UTILS = "torch._dynamo.utils"
_LONGEST = 200


class CompilationObserver(Observer):
    """Looks at PyTorch's own counter, where a test has loaded its compiler."""

    def observe(self, call: ObservedCall, timer: Timer) -> Observation | None:  # noqa: ARG002
        counts = hasattr(sys.modules.get(_UTILS), "counters")  # None forbids an import
        return CompilationObservation(_graphs()) if counts else None


@dataclass(frozen=True)
class CompilationObservation(Observation):
    """Compares the number of compiled graphs with that of the warm call."""

    graphs: int

    def finish(self, measurement: Measurement) -> Seen:  # noqa: ARG002
        count = _graphs() - self.graphs
        if count < 1:
            return Seen()
        function, guard = _latest()
        times = f" {count} times" if count > 1 else ""
        why = f"torch.compile compiled {function}{times} while it was timed{guard}"
        remedy = "give all calls the same shapes and numbers, or compile it with dynamic=True"
        return Seen(invalid=f"{why}: {remedy}")


def _graphs() -> int:
    return int(sys.modules[_UTILS].counters["stats"]["unique_graphs"])


def _latest() -> tuple[str, str]:
    """Names the function that was compiled last, and the guard of the version before that failed."""
    known: Any = getattr(sys.modules[_UTILS], "get_compilation_metrics", list)()
    latest: Any = known[-1] if known else None
    if getattr(latest, "co_name", None) is None:
        return "a function", ""
    place = f"{latest.co_name} ({Path(latest.co_filename or '?').name}:{latest.co_firstlineno})"
    failed = re.match(r"(?:\d+/\d+: )?([^#\n]+)", getattr(latest, "recompile_reason", None) or "")
    return place, f", since a guard failed ({failed[1].strip():.{_LONGEST}})" if failed else ""
