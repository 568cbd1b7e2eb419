"""The files beside an output that hold more than lines of rollouts: turns of unfinished rollouts,
labels that people set. Each module knows one file.
"""
