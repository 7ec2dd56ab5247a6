"""Reads the arguments of the `gpu_benchmark` marker, and refuses unknown ones."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpukern.values.nearest import did_you_mean
from pytest_gpukern.values.options import SettingsError, parse_threshold, parse_timeout
from pytest_gpukern.values.result import Determinism
from pytest_gpukern.values.timer_table import TIMERS


@dataclass(frozen=True)
class MarkerOptions:
    """Holds the arguments of `@pytest.mark.gpu_benchmark`, all optional.

    They apply to calls through `gpu_benchmark`. In a run with `--gpu-benchmark` they also apply to calls
    through pytest-benchmark's `benchmark`, which we measure in tests with this marker.

    Attributes:
        bytes: the fewest bytes that one call moves through device memory; gives GB/s.
        flops: floating-point operations of one call; gives GFLOP/s.
        threshold: the smallest relative slowdown that matters for this test, 0.02 or "2%".
        timer: `auto`, `cupti`, `event`, `graph` or `host`.
        cache: `cold` or `hot`.
        group: pytest-benchmark's group; by default the test's module.
        timeout: seconds that the test may take in the process that measures; `inf` for "off".
        outputs: array arguments that each call writes completely, by position or name, such as `outputs=3` or
            `outputs=(2, "out")`. Positions count from 0, or from the end if negative. A place in a tuple,
            list or dict is `outputs="2[1]"` or `"params['out']"`. We poison outputs before each checked call,
            and every other array must stay as it is.
        inout: array arguments that each call updates in place, named as in `outputs`. Before every later
            call, also a timed one, we put back what they held before the first.
        written: output → index or mask of the elements that a call writes, as in
            `written={"out": numpy.s_[1:-1]}`; the rest must stay as it is.
        determinism: `bitwise` or `run-to-run` if calls on the same inputs must give the same bits;
            `tolerant` if they need not.
        scope: `kernel`, the default, or `launch`: what the call costs the host until it returns.
        reads: files that the test loads beside those that its imports tell and those below its folder, as
            patterns from that folder, such as `reads=["../data/*.csv"]`. `--gpukern-only-changed=RUN.json`
            runs the test where one of them changed.
    """

    bytes: float | None = None
    flops: float | None = None
    threshold: float | None = None
    timer: str | None = None
    cache: str | None = None
    group: str | None = None
    timeout: float | None = None
    outputs: tuple[int | str, ...] = ()
    inout: tuple[int | str, ...] = ()
    written: Mapping[int | str, Any] = field(default_factory=dict, compare=False)
    determinism: Determinism | None = None
    scope: str | None = None
    reads: tuple[str, ...] = ()

    @classmethod
    def from_mark(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> MarkerOptions:
        """Reads a mark's arguments; raises SettingsError, which names the test, for impossible ones."""
        known = tuple(cls.__dataclass_fields__)
        if args:
            raise SettingsError(
                f"{where}: gpu_benchmark takes no positional arguments, found {args!r}; "
                f"name them: {', '.join(known)}"
            )
        for name in kwargs:
            if name not in known:
                raise SettingsError(
                    f"{where}: gpu_benchmark has no argument {name!r}; it takes {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
        values = {name: value for name, value in kwargs.items() if value is not None}

        def label(name: str) -> str:
            return f"{where}: gpu_benchmark({name}={values[name]!r})"

        for name in sorted({"bytes", "flops"}.intersection(values)):
            value = values[name]
            # Real: np.prod(shape) is a NumPy integer
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not (is_number and 0 < float(value) < float("inf")):
                raise SettingsError(f"{label(name)}: must be a positive number, such as 12 * n")
            values[name] = float(value)
        choices_of = {
            "timer": ("auto", *TIMERS),
            "cache": ("cold", "hot"),
            "scope": ("kernel", "launch"),
            "determinism": tuple(Determinism),
        }
        for name, choices in choices_of.items():
            if name in values and values[name] not in choices:
                near = did_you_mean(values[name], choices)
                raise SettingsError(f"{label(name)}: must be one of {', '.join(choices)}{near}")
        if "threshold" in values:
            values["threshold"] = parse_threshold(str(values["threshold"]), label("threshold"))
        if "timeout" in values:
            parsed = parse_timeout(str(values["timeout"]), label("timeout"))
            values["timeout"] = float("inf") if parsed is None else parsed
        if not isinstance(values.get("group", ""), str):
            raise SettingsError(f"{label('group')}: must be a string")
        if "determinism" in values:
            values["determinism"] = Determinism(values["determinism"])
        for name in {"outputs", "inout"}.intersection(values):
            values[name] = _arguments(name, values[name], label(name))
        if "reads" in values:
            several = (values["reads"],) if isinstance(values["reads"], str) else values["reads"]
            listed = isinstance(several, (tuple, list)) and bool(several)
            if not (listed and all(isinstance(pattern, str) and pattern for pattern in several)):
                raise SettingsError(f"{label('reads')}: must be paths or patterns, such as ['../data/*.csv']")
            values["reads"] = tuple(several)
        if not isinstance(values.get("written", {}), Mapping):
            raise SettingsError(
                f"{label('written')}: must map an output to the index or mask that the call writes, such as "
                "written={'out': numpy.s_[1:-1]}"
            )
        return cls(**values)


def _arguments(name: str, value: Any, label: str) -> tuple[int | str, ...]:
    """Reads positions and names of arguments, given as one of them or several."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    right = (
        isinstance(place, (int, str)) and not isinstance(place, bool) and place != "" for place in several
    )
    if not (several and all(right)) or len(set(several)) < len(several):
        raise SettingsError(
            f"{label}: must be positions, counted from 0, or names of arguments that the call writes, each "
            f"once, such as {name}=3 or {name}=(2, 'out')"
        )
    return tuple(several)
