"""Describes one option of the command line and its ini twin."""

from __future__ import annotations

from typing import Any, NamedTuple


class Option(NamedTuple):  # made in a sixth of a dataclass's time, in every run of pytest
    """Describes one option: its name without prefix, what is allowed, and its help.

    Attributes:
        help: two lines of `pytest --help` at most.
        more: whole sentences that only the site shows.
        alone: what the option means without a value, unless its ini value says that. An ini value alone then
            switches nothing on. None if the option needs a value.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: bool = False
    repeatable: bool = False
    listed: bool = False
    more: str = ""
    alone: str | None = None

    @property
    def cli(self) -> str:
        return f"--gpukern-{self.name}"

    @property
    def ini(self) -> str:
        """As written in an ini file; also the attribute that pytest stores the value under."""
        return "gpukern_" + self.name.replace("-", "_")

    @property
    def arguments(self) -> dict[str, Any]:
        shared: dict[str, Any] = {"dest": self.ini, "default": None, "help": self.help}
        if self.flag:
            return {**shared, "action": "store_true"}
        metavar = self.metavar or "{" + ",".join(self.choices) + "}"
        if self.alone is not None:
            shared |= {"nargs": "?", "const": True}
        return {**shared, "action": "append" if self.repeatable else "store", "metavar": metavar}
