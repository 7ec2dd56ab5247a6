"""Benchmarks `discount_streamed`: the vest discount at a size larger than the card, streamed through it."""
