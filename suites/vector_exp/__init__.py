"""Benchmarks `vector_exp`: the exponential of n standard normals, float32."""
