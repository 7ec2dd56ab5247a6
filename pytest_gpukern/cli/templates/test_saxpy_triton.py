import pytest
import torch
import triton
import triton.language as tl

N = 1_000


@triton.jit
def saxpy(a, x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, a * tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@pytest.mark.gpu_benchmark(outputs="out", bytes=12 * N)
def test_saxpy(gpu_benchmark, gpu_device):
    device = "cpu" if gpu_device.is_simulated else "cuda"
    x, y = torch.rand((2, N), device=device)
    out = torch.empty_like(x)
    gpu_benchmark(saxpy[(triton.cdiv(N, 256),)], 2.0, x, y, out, N, BLOCK=256)
    gpu_benchmark.verify(out, 2.0 * x + y, rtol=1e-6)
