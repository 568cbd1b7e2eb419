"""What belongs together: the scope of a key, and the groups of rollouts that share a task, an agent
and a scope.
"""
