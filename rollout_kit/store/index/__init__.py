"""The index of a file of rollouts: where each line stands, and columns of its numbers and short
texts, so that a million lines can be filtered and sorted without reading them again.

An index is a cache: deleting it loses nothing. Nothing here decides what a column is used for.
"""
