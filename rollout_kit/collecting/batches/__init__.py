"""Runs whose models answer in batches: what their plan says, and the rollouts that wait meanwhile
without a place.
"""
