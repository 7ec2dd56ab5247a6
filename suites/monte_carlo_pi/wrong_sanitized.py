"""Declares a broken variant that may be right by luck; compute-sanitizer must reject it."""

from numba import cuda, int64

from .on_numba import is_hit, philox4x32, set_zero
from .problem import monte_carlo_pi
from .wrong import BLOCK, blocks


@cuda.jit
def count_without_atomics(n, seed, hits):
    """All threads of a block add to one counter in shared memory, and none waits for another."""
    total = cuda.shared.array(1, int64)
    if cuda.threadIdx.x == 0:
        total[0] = 0
    cuda.syncthreads()
    count = 0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x, y, _, _ = philox4x32(i & 0xFFFFFFFF, i >> 32, 0, 0, seed, 0)
        count += is_hit(x, y)
    total[0] += count
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(hits, 0, total[0])


@monte_carlo_pi.wrong(
    "numba", detected_by="racecheck", needs_gpu="threads that add at the same time (a race)"
)
def racing_counter(n, seed, hits, stream):
    """Counts get lost where two threads add at the same time."""

    def launch():
        set_zero[1, 1, stream](hits)
        count_without_atomics[blocks(n), BLOCK, stream](n, seed, hits)

    return launch
