"""Agreement of our verifiers with the published ones, each by a command."""
