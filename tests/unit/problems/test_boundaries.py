"""The sizes at which launches go wrong."""

from __future__ import annotations

import pytest

from pytest_gpukern import ProblemError, boundaries


def test_they_are_nothing_one_the_edges_of_warp_and_block_and_a_prime():
    assert boundaries(256) == (0, 1, 31, 33, 255, 256, 257, 521)


@pytest.mark.parametrize(("block", "prime"), [(1, 3), (32, 67), (128, 257), (512, 1031)])
def test_the_prime_needs_a_third_block(block, prime):
    assert boundaries(block)[-1] == prime or prime < 33
    assert prime in boundaries(block)


def test_where_edges_meet_a_size_is_there_once():
    assert boundaries(32) == (0, 1, 31, 32, 33, 67)


def test_what_is_below_the_minimum_is_left_out():
    assert boundaries(128, minimum=1) == (1, 31, 33, 127, 128, 129, 257)
    assert boundaries(128, minimum=100)[0] == 127


@pytest.mark.parametrize("arguments", [{"block": 0}, {"warp": 0}])
def test_a_block_without_threads_is_refused(arguments):
    with pytest.raises(ProblemError, match="1 or more"):
        boundaries(**arguments)
