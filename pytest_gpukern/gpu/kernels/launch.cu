extern "C" __global__ void gpukern_empty() {}

// Keeps the stream busy for a known time while the host queues what comes after it.
extern "C" __global__ void gpukern_wait(unsigned long long ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
