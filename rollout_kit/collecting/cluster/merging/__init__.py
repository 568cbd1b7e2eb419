"""Merges outputs into one: shards of a collection, or any files of rollouts.

Here: what the merged files hold, in which order, and what is odd about their sources.
"""
