"""The counter-based generator of the π suite against the vectors that its authors publish."""

import math

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

from suites.monte_carlo_pi.on_numba import is_hit, philox4x32


# `philox4x32 10` of kat_vectors in the authors' library Random123, https://github.com/DEShawResearch/random123.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_philox_gives_the_published_words(counter, key, words):
    assert philox4x32.py_func(*counter, *key) == words


def test_philox_is_right_where_products_wrap_at_64_bits():
    counter = (0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
    with np.errstate(over="ignore"):
        wrapped = philox4x32.py_func(*map(np.int64, counter), np.int64(7), np.int64(9))
    assert tuple(map(int, wrapped)) == philox4x32.py_func(*counter, 7, 9)


@pytest.mark.parametrize(
    ("x", "y", "hit"),
    [
        (0, 0, 1),
        (0xFFFFFFFF, 0, 1),
        (0xFFFFFFFF, 0xFFFFFFFF, 0),
        (int(2**32 * 0.6) - 2, int(2**32 * 0.8) - 2, 1),
        (int(2**32 * 0.6) + 4, int(2**32 * 0.8) + 4, 0),
    ],
)
def test_a_hit_is_a_point_strictly_inside_the_circle(x, y, hit):
    assert is_hit.py_func(x, y) == hit
    assert (math.hypot(x, y) < 2**32) == bool(hit)
