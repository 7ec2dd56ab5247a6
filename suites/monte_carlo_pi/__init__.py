"""Benchmarks `monte_carlo_pi`: how many of n random points of the unit square lie in the quarter circle."""
