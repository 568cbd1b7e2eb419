"""Benchmarks of rollout_kit, compared with a bare HTTP loop: `python -m benchmarks`."""
