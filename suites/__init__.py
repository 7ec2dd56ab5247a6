"""Holds the benchmark suites, one package for each problem with its variants, broken ones and test."""
