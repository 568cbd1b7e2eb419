"""Numbers computed from rollouts: aggregates, groups, quantiles, intervals, and the comparison of
verdicts.

Everything is a pure function of values; files are read in `store`.
"""
