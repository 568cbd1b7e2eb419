"""The same work with other collectors, each in its own environment."""
