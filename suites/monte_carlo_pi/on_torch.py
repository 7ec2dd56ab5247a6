"""Uses PyTorch: random tensors in pieces that are counted by a reduction."""

import torch

from .problem import monte_carlo_pi

PIECE = 1 << 25  # points; their coordinates take 256 MiB


@monte_carlo_pi.variant("torch", max_size={"n": 10**8})
def rand(n, seed, hits):
    """`torch.rand` with a generator of its own (Philox): new tensors a piece; calls continue the stream."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def launch():
        hits.zero_()
        for first in range(0, n, PIECE):
            size = min(PIECE, n - first)
            x, y = torch.rand((2, size), generator=generator, device="cuda")
            hits.add_(torch.count_nonzero(x * x + y * y < 1))

    return launch
