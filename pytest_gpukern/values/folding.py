"""Writes results into a file so that what several share is in it once, and puts them together again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pytest_gpukern.values.result import JsonDict, Result
from pytest_gpukern.values.stored import beyond, defaults, fields

_OF_A_PROCESS = ("fingerprint", "provenance", "canaries", "ceilings", "recorded")
"""Fields that the results of one process mostly share."""
_OF_A_SESSION = ("session", "role", "measurements", "first_call_ns", "compile_ns")
"""Fields in which the sessions of a case mostly differ; it shares the others."""


class Processes:
    """Holds what the results of each process share, by its id, as they are written."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, Any]] = {}

    def folded(self, result: Result, shared: Mapping[str, Any] = MappingProxyType({})) -> JsonDict:
        """Returns the fields of a result that are neither shared, nor its process's, nor as by default."""
        own = {name: getattr(result, name) for name in _OF_A_PROCESS if name not in shared}
        process = self._first.setdefault(result.session, own)
        known = defaults(Result) | process | dict(shared)
        return beyond(known, fields(result))

    def folded_sessions(self, results: Iterable[Result], given: Mapping[str, Any]) -> JsonDict:
        """Returns what the sessions of a case share, and what each has beyond that.

        Fields that are `given` are not written, since the reader knows them.
        """
        sessions = tuple(results)
        apart = {*_OF_A_PROCESS, *_OF_A_SESSION, *given}
        shared = {name: of for name, of in fields(sessions[0]).items() if name not in apart}
        own = [self.folded(session, shared | dict(given)) for session in sessions]
        return {"shared": beyond(defaults(Result), shared), "sessions": own}

    def table(self) -> JsonDict:
        return {name: beyond(defaults(Result), process) for name, process in self._first.items()}


def unfolded(result: Any, processes: Any, shared: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Returns a whole result as plain JSON. What is malformed stays as it is, and its schema refuses it."""
    if not isinstance(result, dict):
        return result
    name = result.get("session", "")
    process = processes.get(name) if isinstance(processes, dict) and isinstance(name, str) else None
    return {**(process if isinstance(process, dict) else {}), **shared, **result}


def unfolded_sessions(folded: Any, processes: Any, given: Mapping[str, Any]) -> Any:
    """Returns an epoch with whole sessions as plain JSON. What is malformed stays as it is."""
    if not isinstance(folded, dict) or not isinstance(folded.get("sessions"), list):
        return folded
    shared = folded.get("shared", {})
    if not isinstance(shared, dict):
        return folded
    whole = [unfolded(session, processes, {**shared, **given}) for session in folded["sessions"]]
    return {**{name: of for name, of in folded.items() if name != "shared"}, "sessions": whole}
