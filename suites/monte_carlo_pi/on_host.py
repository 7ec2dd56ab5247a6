"""Uses NumPy on one thread, in pieces that stay in cache."""

import numpy as np

from .problem import monte_carlo_pi

PIECE = 1 << 16


@monte_carlo_pi.variant("host", max_size={"n": 10**7})
def numpy(n, seed, hits):
    """float32 points from PCG64, 65 536 at a time in the same two buffers; calls continue the stream."""
    rng = np.random.default_rng(seed)
    x, y = np.empty(PIECE, np.float32), np.empty(PIECE, np.float32)

    def launch():
        total = 0
        for first in range(0, n, PIECE):
            size = min(PIECE, n - first)
            px, py = x[:size], y[:size]
            for part in (px, py):
                rng.random(out=part, dtype=np.float32)
                np.multiply(part, part, out=part)
            np.add(px, py, out=px)
            total += np.count_nonzero(px < 1)
        hits[0] = total

    return launch
