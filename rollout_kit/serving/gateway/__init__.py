"""The gateway: an address for each rollout, at which a program of others finds the model of the run
in the API that it speaks. Every call is recorded, and becomes a turn of the rollout.
"""
