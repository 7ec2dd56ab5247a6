"""Benchmarks `discount`: a cumulative vest discount, one multiplication for every 16 bytes moved."""
