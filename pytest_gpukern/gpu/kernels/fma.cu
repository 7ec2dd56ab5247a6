// Multiply-adds of T in CHAINS independent chains a thread, UNROLLED links of each in the loop's body.

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

// values: factor, addend, a sum that no thread reaches, a place to store to; then CHAINS starting values for
// each thread of a block. They come from memory and differ between chains and threads, so the compiler cannot
// merge chains or do work once for a whole warp. The comparison keeps it from dropping the work.
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
