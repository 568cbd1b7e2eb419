"""Benchmarks by name. Fetching their rows belongs in `collecting/data/benchmarks`."""
