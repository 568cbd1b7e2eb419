"""The same work through other collectors, each in an environment of its own."""
