"""Stands for NeMo Gym in tests: base classes with the behaviour that its protocol describes."""
