"""The files beside an output that hold more than lines of rollouts: failures, turns of
unfinished rollouts, labels that people set. Each module knows one file.
"""
