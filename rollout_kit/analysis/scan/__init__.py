"""Scanners: what they look for in the turns of a rollout, and how files are looked through."""
