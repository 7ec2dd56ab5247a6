"""Holds what a session was measured on: device, driver, libraries and host, and the state of the code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_gpukern.values.stored import Stored

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
"""A commit's name in full, by SHA-1 or SHA-256."""

_OBJECTS = ("GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_ALTERNATE_OBJECT_DIRECTORIES")
OF_A_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", *_OBJECTS)
"""Variables that git sets for its hooks; they would point every command to another repository or index.

`GIT_CONFIG_…` is not among them: a container in CI passes `safe.directory` by these.
"""


class Fingerprint(Stored, frozen=True):
    """Holds the conditions of a session, in watts and MHz; None where there is no device or it is unknown."""

    device_name: str | None = None
    device_uuid: str | None = None
    device_model_key: str | None = None
    compute_capability: tuple[int, int] | None = None
    mig_profile: str | None = None
    is_simulated: bool = False
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    python_version: str | None = None
    platform: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    blas: str | None = None
    libraries: Mapping[str, str] = {}

    def model_key(self, *, on_gpu: bool) -> str | None:
        """Returns the hardware that a result was timed on, as part of a file name; None if unknown."""
        cpu = self.cpu_model and file_key(re.sub(r"\(R\)|\(TM\)", "", self.cpu_model))  # amd-epyc-9654
        return self.device_model_key if on_gpu else cpu

    def hardware(self, *, on_gpu: bool) -> str | None:
        return self.device_name if on_gpu else self.cpu_model


class Provenance(Stored, frozen=True):
    """Says which state of the code a session was recorded on; None for what is not known.

    Attributes:
        commit: hash of the commit that was checked out.
        dirty: whether files under version control differed from it.
        branch: its branch; None where none was checked out by name.
        ci_url: the page of the run in continuous integration.
    """

    commit: str | None = None
    dirty: bool | None = None
    branch: str | None = None
    ci_url: str | None = None

    @property
    def state(self) -> str:
        """Returns `093d14b`, or `093d14b with uncommitted changes`; empty where it is not known."""
        return (self.commit or "")[:7] + (" with uncommitted changes" if self.commit and self.dirty else "")


NO_PROVENANCE = Provenance()


def file_key(text: str) -> str:
    """Reduces a name to lower-case letters, digits and "+_-", which are safe in file names everywhere.

    A dot becomes "_", since dots separate the parts of a file name.
    """
    return re.sub(r"[^a-z0-9+_]+", "-", text.lower().replace(".", "_")).strip("-_") or "unknown"
