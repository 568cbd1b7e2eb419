"""NeMo Gym's YAML, servers and benchmarks, used from a checkout of it.

Nothing here imports NeMo Gym: its code runs in processes of its own, under its own interpreter.
"""
