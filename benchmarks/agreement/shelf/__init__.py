"""Prompts and verdicts of benchmarks by name, compared with those that they follow."""
