"""Benchmarks `add_constant`: add 2 to every element of a three-dimensional array."""
