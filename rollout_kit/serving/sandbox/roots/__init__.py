"""Root file systems for sessions: a base, and over it the steps of a Dockerfile.

Built once, kept in the cache by content, and shared by all sessions, which only read it.
"""
