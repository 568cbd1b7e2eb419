"""What agents are made of: turns of a rollout, its limits, tool calls, and users who talk back."""
