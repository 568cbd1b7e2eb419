"""What is made of stored rollouts: metrics, comparisons, exports, pairs, the report and the viewer.

Everything here reads rollouts through `store`. Nothing here runs a rollout.
"""
