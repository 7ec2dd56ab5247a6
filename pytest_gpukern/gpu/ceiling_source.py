"""CUDA C++ of the kernels that find out what the device can do: multiply-adds, a copy, a wait, nothing."""

from __future__ import annotations

BLOCK = 256
"""Threads a block of the FMA and copy kernels."""
CHAINS = 8
"""Independent chains of multiply-adds a thread: with eight warps a scheduler, ten times an FMA's latency."""
UNROLLED = 64
"""Links of each chain in the loop's body: 512 multiply-adds beside three instructions of the loop itself."""
WORDS = 4
"""16-byte words that a thread of the copy kernel has under way at once."""

_FMA = r"""
struct half2x { unsigned bits; };             // two float16 in one register
struct float2x { unsigned long long bits; };  // two float32 in a pair of registers

__device__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  // Not a * b + c: NVRTC 13.4 takes 15 s to optimise 512 of those for sm_100.
  asm("mad.lo.u32 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
}
__device__ half2x multiply_add(half2x a, half2x b, half2x c) {
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a.bits) : "r"(b.bits), "r"(c.bits));
  return a;
}
#if __CUDA_ARCH__ >= 1000
__device__ float2x multiply_add(float2x a, float2x b, float2x c) {
  asm("fma.rn.f32x2 %0, %0, %1, %2;" : "+l"(a.bits) : "l"(b.bits), "l"(c.bits));
  return a;
}
#endif

__device__ bool same(float a, float b) { return a == b; }
__device__ bool same(double a, double b) { return a == b; }
__device__ bool same(unsigned a, unsigned b) { return a == b; }
__device__ bool same(half2x a, half2x b) { return a.bits == b.bits; }
__device__ bool same(float2x a, float2x b) { return a.bits == b.bits; }

// values: factor, addend, a sum that never comes out, a place to store to; then CHAINS starting values for
// each thread of a block. They come from memory and differ between chains and threads, so that no chains are
// merged and no work is done once for a whole warp; the comparison keeps all of it from being left out.
extern "C" __global__ void __launch_bounds__(BLOCK) gpukern_fma(T *values, unsigned iterations) {
  const T factor = values[0], addend = values[1];
  T chain[CHAINS];
#pragma unroll
  for (int j = 0; j < CHAINS; ++j) chain[j] = values[4 + j * BLOCK + threadIdx.x];
#pragma unroll 1
  for (unsigned i = 0; i < iterations; ++i) {
#pragma unroll
    for (int u = 0; u < UNROLLED; ++u)
#pragma unroll
      for (int j = 0; j < CHAINS; ++j) chain[j] = multiply_add(chain[j], factor, addend);
  }
  T sum = chain[0];
#pragma unroll
  for (int j = 1; j < CHAINS; ++j) sum = multiply_add(sum, factor, chain[j]);
  if (same(sum, values[2])) values[3] = sum;
}
"""

_COPY = r"""
// A tile of BLOCK * WORDS 16-byte words a block; a thread's words are all loaded before the first is stored.
extern "C" __global__ void __launch_bounds__(BLOCK) gpukern_copy(const uint4 *from, uint4 *to) {
  size_t first = (size_t)blockIdx.x * (BLOCK * WORDS) + threadIdx.x;
  uint4 words[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; ++k) words[k] = from[first + k * BLOCK];
#pragma unroll
  for (int k = 0; k < WORDS; ++k) to[first + k * BLOCK] = words[k];
}
"""

COPY = f"#define BLOCK {BLOCK}\n#define WORDS {WORDS}\n{_COPY}"

FILL = r"""
// Contents without a pattern: the finalizer of MurmurHash3 (Appleby 2011) of each index.
extern "C" __global__ void gpukern_fill(unsigned *words, unsigned long long count) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    unsigned x = (unsigned)i + 1;
    x ^= x >> 16; x *= 0x85EBCA6Bu;
    x ^= x >> 13; x *= 0xC2B2AE35u;
    words[i] = x ^ (x >> 16);
  }
}
"""

LAUNCH = r"""
extern "C" __global__ void gpukern_empty() {}

// Keeps the stream busy for a known time while the host queues what comes after it.
extern "C" __global__ void gpukern_wait(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""


def fma_source(c_type: str) -> str:
    """Source of `gpukern_fma` for `float`, `double`, `unsigned`, `half2x` or, from sm_100 on, `float2x`."""
    sizes = f"#define BLOCK {BLOCK}\n#define CHAINS {CHAINS}\n#define UNROLLED {UNROLLED}\n"
    return f"#define T {c_type}\n{sizes}{_FMA}"
