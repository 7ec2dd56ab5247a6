// Spins on the device's global timer, and writes out its last reading less its first.
extern "C" __global__ void gpukern_spin(unsigned long long ns, unsigned long long *own_ns) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
  *own_ns = now - start;
}
