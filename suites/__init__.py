"""The benchmark suites: one package a problem, with its variants, its broken variants and its test."""
