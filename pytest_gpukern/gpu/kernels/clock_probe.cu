typedef unsigned long long u64;

__device__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// Polls until the global timer steps, and notes the clock of the multiprocessor at the polls before and
// after it: the step lies between them. False if the timer stands still.
__device__ bool next_step(u64 *ns, long long *before, long long *after, long long patience) {
  u64 first = now_ns();
  long long begun = clock64();
  *after = begun;
  do {
    *before = *after;
    *ns = now_ns();
    *after = clock64();
    if (*after - begun > patience) return false;
  } while (*ns == first);
  return true;
}

// One thread of each block writes: nanoseconds, clocks, and the uncertainty of the clocks.
extern "C" __global__ void gpukern_clock(u64 *found, u64 duration_ns, long long patience) {
  if (threadIdx.x) return;
  u64 start_ns, end_ns;
  long long start_before, start_after, end_before, end_after;
  u64 *mine = found + 3 * blockIdx.x;
  mine[0] = mine[1] = mine[2] = 0;
  if (!next_step(&start_ns, &start_before, &start_after, patience)) return;
  do {
    if (!next_step(&end_ns, &end_before, &end_after, patience)) return;
  } while (end_ns - start_ns < duration_ns);
  mine[0] = end_ns - start_ns;
  mine[1] = end_after - start_after;
  mine[2] = max(end_after - end_before, start_after - start_before);
}
