"""What the methods of a verifier take and return: the verdict on one rollout, and the scores of a
group of rollouts; the limits of a verdict that is computed in a worker process.
"""
