// Kernels whose times `gate_on_gpu.py` has the gate judge, and checks of their results.
// Values are whole numbers that their types hold, so every result is exact and none is rounded.

typedef unsigned long long u64;

__device__ u64 here() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ u64 all() { return (u64)gridDim.x * blockDim.x; }
__device__ u64 mix(u64 x) {  // finalizer of SplitMix64 (Steele et al. 2014)
  x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27; x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// contents

extern "C" __global__ void gate_fill_floats(float *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (float)(mix(i + 1) & 0xFFFF);
}
extern "C" __global__ void gate_fill_doubles(double *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (double)(mix(i + 1) >> 12);
}
extern "C" __global__ void gate_fill_words(unsigned *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (unsigned)mix(i + 1);
}

// timed kernels

extern "C" __global__ void gate_nothing() {}

extern "C" __global__ void gate_scale(const float *x, float *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}

extern "C" __global__ void gate_add(const double *x, double *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = x[i] + 2.0;
}

extern "C" __global__ void gate_copy(const uint4 *x, uint4 *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = x[i];
}

extern "C" __global__ void gate_transpose(const float *x, float *y, u64 n) {
  u64 i = here();
  if (i < n * n) y[(i % n) * n + i / n] = x[i];
}

// Adds to what is there: the host sets it to zero before a launch that is checked.
extern "C" __global__ void gate_sum(const unsigned *x, u64 n, u64 *total) {
  __shared__ u64 of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  u64 sum = 0;
  for (u64 i = here(); i < n; i += all()) sum += x[i];
  atomicAdd(&of_block, sum);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(total, of_block);
}

extern "C" __global__ void gate_histogram(const unsigned *x, u64 n, unsigned *bins) {
  __shared__ unsigned of_block[BINS];
  for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) of_block[bin] = 0;
  __syncthreads();
  for (u64 i = here(); i < n; i += all()) atomicAdd(&of_block[x[i] % BINS], 1u);
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) atomicAdd(&bins[bin], of_block[bin]);
}

// Each multiply-add adds one, so that the result is their number. The compiler cannot know what `one` is.
// Unrolled trips would need a remainder, in which a trip takes another time.
extern "C" __global__ void gate_fma(float *out, unsigned one, unsigned trips) {
  float step = (float)one, chain[CHAINS];
#pragma unroll
  for (unsigned c = 0; c < CHAINS; ++c) chain[c] = (float)(threadIdx.x % 64 + c);
#pragma unroll 1
  for (unsigned trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (unsigned u = 0; u < UNROLLED; ++u)
#pragma unroll
      for (unsigned c = 0; c < CHAINS; ++c) chain[c] = fmaf(chain[c], step, step);
  }
  float sum = 0;
#pragma unroll
  for (unsigned c = 0; c < CHAINS; ++c) sum += chain[c];
  out[here()] = sum;
}

extern "C" __global__ void gate_chase(const unsigned *next, unsigned *end, unsigned at, unsigned steps) {
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) at = next[at];
  *end = at;
}

// checks

// Counts the wrong elements among the first n, and the written ones among the others.
extern "C" __global__ void gate_check_scale(const float *x, const float *y, u64 n, u64 room, unsigned poison,
                                            u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (i < n ? y[i] != 2.0f * x[i] + 1.0f : __float_as_uint(y[i]) != poison) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_add(const double *x, const double *y, u64 n, u64 room, unsigned poison,
                                          u64 *wrong) {
  u64 both = ((u64)poison << 32) | poison;
  for (u64 i = here(); i < room; i += all())
    if (i < n ? y[i] != x[i] + 2.0 : (u64)__double_as_longlong(y[i]) != both) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_copy(const unsigned *x, const unsigned *y, u64 n, u64 room,
                                           unsigned poison, u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (y[i] != (i < n ? x[i] : poison)) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_transpose(const float *x, const float *y, u64 n, u64 room,
                                                unsigned poison, u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (i < n * n ? y[i] != x[(i % n) * n + i / n] : __float_as_uint(y[i]) != poison) atomicAdd(wrong, 1ull);
}

// The same as above, as simple as possible.
extern "C" __global__ void gate_plain_sum(const unsigned *x, u64 n, u64 *total) {
  for (u64 i = here(); i < n; i += all()) atomicAdd(total, (u64)x[i]);
}

extern "C" __global__ void gate_plain_histogram(const unsigned *x, u64 n, unsigned *bins) {
  for (u64 i = here(); i < n; i += all()) atomicAdd(&bins[x[i] % BINS], 1u);
}
