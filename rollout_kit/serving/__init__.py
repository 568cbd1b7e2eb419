"""Base classes that users subclass (resources server, agent, model), and what they are built from:
tools, sessions, judges, games, hosted models, and the registry of server folders.

How a request reaches a server belongs in `transport`; concrete servers have folders of their own.
The package is not called `servers`, because `rollout_kit.servers` is the function that starts them.
"""
