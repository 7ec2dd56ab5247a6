// A block copies BLOCK * WORDS 16-byte words; a thread loads all its words before it stores the first.
extern "C" __global__ void __launch_bounds__(BLOCK) gpukern_copy(const uint4 *from, uint4 *to) {
  size_t first = (size_t)blockIdx.x * (BLOCK * WORDS) + threadIdx.x;
  uint4 words[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; ++k) words[k] = from[first + k * BLOCK];
#pragma unroll
  for (int k = 0; k < WORDS; ++k) to[first + k * BLOCK] = words[k];
}

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
