"""What is said of a baseline file that cannot be used."""

from __future__ import annotations

from pytest_gpukern.file_error import FileError

RESTORE = (
    "Restore the file from version control, or delete it and record again with --gpukern-baseline=create"
)


class BaselineError(FileError):
    """A baseline file that cannot be read or written, or a name that must not become one."""
