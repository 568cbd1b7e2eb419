"""Fault injection: collect while processes are killed, then check that no rollout was lost, doubled
or made up.
"""
