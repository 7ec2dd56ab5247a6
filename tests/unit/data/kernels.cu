// Kernels for `test_cubin.py`; README.md says how they were compiled.
#define KERNEL extern "C" __global__ void
#define ALL _Pragma("unroll")

const int N = 18;

// Nothing in local memory.
KERNEL plain(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

// More values than registers.
__device__ __forceinline__ void many(const float *x, float *y, int n) {
    float a[N];
    ALL for (int i = 0; i < N; i++) a[i] = x[threadIdx.x + i * n];
    __syncthreads();
    ALL for (int i = 0; i < N; i++) y[threadIdx.x + i * n] = a[i] * a[N - 1 - i] + a[i * 7 % N];
}
KERNEL spilling(const float *__restrict__ x, float *y, int n) { many(x, y, n); }

// An array that is indexed while it runs, and one whose places are constants: local memory without spills.
KERNEL array(const float *x, float *y, int n) {
    float a[8];
    for (int i = 0; i < 8; i++) a[i] = x[i * n];
    ALL for (int i = 0; i < 3; i++) a[(i * 5 + n) & 7] += x[i];
    y[threadIdx.x] = a[n & 7];
}
KERNEL places(const char *x, float *y) {
    volatile union { char bytes[16]; float values[4]; } a;
    ALL for (int i = 0; i < 16; i++) a.bytes[i] = x[i];
    y[threadIdx.x] = a.values[0] + a.values[1] * a.values[2] + a.values[3];
}

// Both.
KERNEL both(const float *__restrict__ x, float *y, int n) {
    volatile float a[4];
    ALL for (int i = 0; i < 4; i++) a[i] = x[i * n];
    many(x, y, n);
    y[threadIdx.x + 1] = a[n & 3];
}

// Calls a subroutine that ptxas puts behind it, and a function of its own that saves registers.
KERNEL dividing(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x] / x[1]; }
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL calling(int *y, int n) { y[threadIdx.x] = fibonacci(n); }
