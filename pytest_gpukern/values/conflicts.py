"""Options that cannot both be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpukern.values.options import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Conflict = tuple[bool, str, str]
"""Whether it applies, the option to name, and why with the way out."""


def refuse_contradictions(
    benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str], in_ci: bool
) -> None:
    """Refuses two options that cannot both be meant, naming both and the way out.

    An ini file speaks to every run, also to those that do not measure or select something else: what it says
    is refused only where a baseline would be written.

    Args:
        benchmark: whether `--gpu-benchmark` was given.
        values: option name → parsed value, of the options that were given.
        labels: option name → option and value as the user wrote them.
        in_ci: whether `CI` is set in the environment.

    Raises:
        SettingsError: with the first contradiction.
    """
    for applies, name, remedy in (
        *_of_baselines(benchmark, values, labels, in_ci),
        *_of_two_revisions(benchmark, values, labels),
        *_of_the_sanitizer(benchmark, values, labels),
        *_of_the_simulator(values, labels),
        *_of_the_rest(benchmark, values, labels),
    ):
        if applies and (labels[name].startswith("--") or (name == "baseline" and benchmark)):
            raise SettingsError(f"{labels[name]}: {remedy}")


def _of_baselines(
    benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str], in_ci: bool
) -> Iterator[Conflict]:
    writes = values.get("baseline") in ("create", "append", "update")
    updates = values.get("baseline") == "update"
    yield writes and not benchmark, "baseline", "nothing is measured; add --gpu-benchmark"
    yield (
        writes and values.get("simulator") == "always",
        "baseline",
        f"a simulated run has no times to record; drop it or {labels.get('simulator')}",
    )
    yield (
        writes and in_ci and not values.get("write-in-ci"),
        "baseline",
        "CI is set in the environment and CI may not write baselines; add --gpukern-write-in-ci if meant",
    )
    yield (
        bool(values.get("write-in-ci")) and not writes,
        "write-in-ci",
        "nothing would be written; add --gpukern-baseline=create, append or update",
    )
    yield (
        writes and "seed" in values,
        "seed",
        f"what is recorded is measured on each problem's own inputs; drop it or {labels.get('baseline')}",
    )
    prunes = bool(values.get("prune"))
    yield "reason" in values and not updates, "reason", "an update keeps it; add --gpukern-baseline=update"
    yield prunes and not updates, "prune", "an update does it; add --gpukern-baseline=update"
    for name in ("backend", "axis", "scope", "size"):
        part = f"it needs a run of everything; drop it or {labels.get(name)}"
        yield prunes and name in values, "prune", part


def _of_two_revisions(
    benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str]
) -> Iterator[Conflict]:
    yield "against" in values and not benchmark, "against", "nothing is measured; add --gpu-benchmark"
    yield (
        "against" in values and values.get("baseline") in ("create", "update", "append"),
        "against",
        f"a comparison of two revisions records nothing; drop it or {labels.get('baseline')}",
    )
    yield (
        "against" in values and values.get("sessions") == 1,
        "against",
        f"one pair of sessions has no spread; drop {labels.get('sessions')}, or ask for 2 or more a side",
    )
    yield (
        "against-setup" in values and "against" not in values,
        "against-setup",
        "there is no base to set up; add --gpukern-against=REV",
    )


def _of_the_sanitizer(
    benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str]
) -> Iterator[Conflict]:
    sanitizes = "sanitize" in values
    yield (
        sanitizes and benchmark,
        "sanitize",
        "under a sanitizer no time means anything; drop it or --gpu-benchmark",
    )
    yield (
        sanitizes and values.get("simulator") == "always",
        "sanitize",
        f"the simulator has no kernels to look into; drop it or {labels.get('simulator')}",
    )
    yield (
        sanitizes and values.get("backend") == ("host",),
        "sanitize",
        f"only host variants are selected by {labels.get('backend')}, which launch nothing on a GPU",
    )
    yield (
        sanitizes and values.get("isolate") == "on",
        "sanitize",
        f"each tool has processes of its own; drop it or {labels.get('isolate')}",
    )


def _of_the_simulator(values: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Conflict]:
    simulated = values.get("simulator") == "always"
    label = labels.get("simulator")
    yield (
        simulated and "device" in values,
        "device",
        f"the simulator has no GPU to choose; drop it or {label}",
    )
    yield (
        simulated and values.get("require") == "gpu",
        "require",
        f"the simulator is no GPU; drop it or {label}",
    )
    yield (
        simulated and values.get("size") in ("full", "huge"),
        "size",
        f"{values.get('size')} sizes never end in the simulator; use smoke or drop {label}",
    )


def _of_the_rest(benchmark: bool, values: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Conflict]:
    yield bool(values.get("all")) and not benchmark, "all", "nothing is measured; add --gpu-benchmark"
    huge = values.get("size") == "huge"
    yield huge and benchmark, "size", "huge sizes are checked, never measured; drop --gpu-benchmark"
    yield "sessions" in values and not benchmark, "sessions", "nothing is measured; add --gpu-benchmark"
    host_only = values.get("backend") == ("host",)
    strict = bool(values.get("strict"))
    yield (
        values.get("timer") in ("cupti", "event", "graph") and host_only,
        "timer",
        f"it times a GPU, and only host variants are selected by {labels.get('backend')}; use host",
    )
    yield bool(values.get("energy")) and not benchmark, "energy", "nothing is measured; add --gpu-benchmark"
    yield (
        bool(values.get("energy")) and "kernel" not in values.get("scope", ("kernel",)),
        "energy",
        f"it is told of the scope kernel, which is not in {labels.get('scope')}; add it there",
    )
    yield (
        values.get("require") == "gpu" and host_only,
        "require",
        f"only host variants are selected by {labels.get('backend')}",
    )
    yield (
        strict and values.get("gate") == "off",
        "strict",
        f"the gate is off; drop it or {labels.get('gate')}",
    )
    yield (
        "gate-on" in values and values.get("gate") == "off",
        "gate-on",
        f"the gate is off; drop it or {labels.get('gate')}",
    )
    for name in ("gate-on", "drift"):
        by_itself = name == "gate-on" and "memory" in values.get(name, ())  # nothing recorded is needed
        yield (
            name in values and values.get("baseline") == "off" and not by_itself,
            name,
            f"there is nothing to compare with; drop it or {labels.get('baseline')}",
        )
    yield (
        strict and values.get("baseline") == "off",
        "strict",
        f"there is nothing to be strict about; drop it or {labels.get('baseline')}",
    )
