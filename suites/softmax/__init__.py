"""Benchmarks `softmax`: the softmax of each row of a matrix, float32, float16 and bfloat16."""
