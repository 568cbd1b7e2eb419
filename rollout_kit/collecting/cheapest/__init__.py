"""The cheapest way of a run: how each rollout's requests are sent, what the plan says about it, and
what the run has saved.
"""
