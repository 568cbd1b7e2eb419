"""The language of filters: its syntax, and what an expression says of a rollout or of columns.

What is done with the rollouts that a filter keeps belongs to those who ask.
"""
