"""Health of stored rollouts: checks for faults that a reward does not show.

A rollout whose model call failed, or whose turns say nothing, has a reward like any other. The
checks have the names of NeMo Gym's, and find the same in its files.
"""
