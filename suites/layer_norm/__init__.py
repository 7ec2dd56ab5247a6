"""Benchmarks `layer_norm`: the forward pass of layer normalisation, with mean and reciprocal deviation."""
