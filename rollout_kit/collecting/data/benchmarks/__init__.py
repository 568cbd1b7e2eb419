"""The rows of benchmarks: fetched once, mapped to tasks, and kept in the cache.

What a benchmark's name means belongs in `config/benchmarks`.
"""
