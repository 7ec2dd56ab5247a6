"""Declares broken variants that `pycuda.curandom` invites; each must be rejected for its fault."""

from .on_pycuda import Xorwow, count_in_pieces, seeds_from
from .problem import monte_carlo_pi


@monte_carlo_pi.wrong("pycuda", expected_fault="statistics")
def seed_ignored(n, hits, stream):
    """Seeds its generators with the same constants whatever the seed: always the same points."""
    return count_in_pieces(Xorwow(seeds_from(12345)), n, hits, stream)
