// Compares an output of ACTUAL elements with its reference of EXPECTED ones; JUDGE compares one pair.

typedef unsigned long long u64;
struct f16 { unsigned short bits; };

__device__ double wide(double v) { return v; }
__device__ double wide(float v) { return v; }
__device__ double wide(f16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
  return f;
}
__device__ double rounded(double e, double) { return e; }
__device__ double rounded(double e, float) { return (float)e; }
__device__ double rounded(double e, f16) {
  f16 h;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(h.bits) : "d"(e));
  return wide(h);
}

__device__ bool holds_poison(const void *data, u64 i, int width, unsigned poison) {
  if (width == 8) {
    u64 both = ((u64)poison << 32) | poison;
    return ((const u64 *)data)[i] == both;
  }
  if (width == 4) return ((const unsigned *)data)[i] == poison;
  if (width == 2) return ((const unsigned short *)data)[i] == (unsigned short)(poison >> (16 * (i & 1)));
  return ((const unsigned char *)data)[i] == (unsigned char)(poison >> (8 * (i & 3)));
}

// found: mismatches, unwritten, unexpected NaN, first unwritten, then the largest absolute, relative and ULP
// error as the bits of a double (which order like integers for values >= 0), then their first indices, and
// the first mismatch.
struct Errors { double absolute, relative, ulp; bool bad, unwritten, nan; };

template <typename A, typename E>
__device__ Errors judge(const A *actual, const E *expected, u64 i, double rtol, double atol, unsigned poison,
                        int mantissa_bits, int min_exponent) {
  Errors r = {0, 0, 0, false, false, false};
  double a = wide(actual[i]), e = wide(expected[i]);
  if (a == e) return r;  // never true for the poison, a NaN
  bool actual_nan = a != a, expected_nan = e != e;
  if (actual_nan && expected_nan && !holds_poison(actual, i, sizeof(A), poison)) return r;
  bool equal = a == rounded(e, actual[i]);
  double error = fabs(a - e), size = fabs(e);
  if (equal && !isfinite(error)) error = 0;
  bool near = isfinite(size) && error <= atol + rtol * size;
  bool passed = (equal || near) && !actual_nan && !expected_nan;
  r.bad = !passed;
  r.unwritten = r.bad && holds_poison(actual, i, sizeof(A), poison);
  r.nan = r.bad && actual_nan && !r.unwritten;
  if (actual_nan || expected_nan || r.unwritten) return r;
  r.absolute = error;
  r.relative = size > 0 ? error / size : 0;
  int exponent = size > 0 ? (isfinite(size) ? ilogb(size) : 1 << 20) : min_exponent;
  int top = sizeof(A) == 8 ? 1023 : sizeof(A) == 4 ? 127 : 15;
  r.ulp = ldexp(error, mantissa_bits - max(min(exponent, top), min_exponent));
  return r;
}

template <typename T>
__device__ Errors judge_integer(const T *actual, const T *expected, u64 i, double rtol, double atol,
                                unsigned poison) {
  Errors r = {0, 0, 0, false, false, false};
  T a = actual[i], e = expected[i];
  if (a == e) return r;
  double error = a > e ? (double)((u64)a - (u64)e) : (double)((u64)e - (u64)a);
  r.bad = !(error <= atol + rtol * fabs((double)e));
  r.unwritten = r.bad && holds_poison(actual, i, sizeof(T), poison);
  if (r.unwritten) return r;
  r.absolute = error;
  r.relative = e != 0 ? r.absolute / fabs((double)e) : 0;
  return r;
}

__device__ void note(u64 *slot, u64 *index, double value, u64 i, bool second_pass) {
  u64 bits = __double_as_longlong(value);
  if (!second_pass) {
    if (value > 0 && bits > *(volatile u64 *)slot) atomicMax(slot, bits);
  } else if (value > 0 && bits == *slot && i < *(volatile u64 *)index) {
    atomicMin(index, i);
  }
}

__device__ void record(const Errors &r, u64 i, u64 *found, bool second_pass) {
  if (!second_pass && r.bad) {
    atomicAdd(&found[0], 1ull);
    atomicMin(&found[10], i);
    if (r.unwritten) { atomicAdd(&found[1], 1ull); atomicMin(&found[3], i); }
    if (r.nan) atomicAdd(&found[2], 1ull);
  }
  note(&found[4], &found[7], r.absolute, i, second_pass);
  note(&found[5], &found[8], r.relative, i, second_pass);
  note(&found[6], &found[9], r.ulp, i, second_pass);
}

extern "C" __global__ void gpukern_compare(const ACTUAL *actual, const EXPECTED *expected, u64 count,
                                           double rtol, double atol, unsigned poison, int mantissa_bits,
                                           int min_exponent, u64 *found, int second_pass) {
  if (second_pass && !(found[4] | found[5] | found[6])) return;  // no error to look for
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
    record(JUDGE, i, found, second_pass);
}
