__device__ unsigned long long mix(unsigned long long x) {  // finalizer of SplitMix64 (Steele et al. 2014)
  x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27; x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

extern "C" __global__ void gpukern_hash(const unsigned *words, unsigned long long count,
                                        unsigned long long *sum) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
    mine += mix(words[i] + (i << 32) + i * 0x9E3779B97F4A7C15ull);
  atomicAdd(sum, mine);
}
