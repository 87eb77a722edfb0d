"""Benchmarks: each compares with a baseline in the same run where there is one, and writes JSON to `results/`."""
