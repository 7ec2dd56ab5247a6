"""Two revisions of one repository side by side: git, a worktree of the base, and where modules came from."""

from __future__ import annotations

from pytest_gpukern.revisions.git import GitError, Revisions, resolve, short
from pytest_gpukern.revisions.provenance import Loaded, Tree, combined_hash, misplaced, own_names
from pytest_gpukern.revisions.worktree import Worktree, prune_left_over

__all__ = [
    "GitError",
    "Loaded",
    "Revisions",
    "Tree",
    "Worktree",
    "combined_hash",
    "misplaced",
    "own_names",
    "prune_left_over",
    "resolve",
    "short",
]
