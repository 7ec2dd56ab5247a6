"""Benchmarks `matmul`: the product of two square float32 matrices."""
