"""What the methods of a verifier take and return: the verdict on one rollout, and the scores of a
group of rollouts.
"""
