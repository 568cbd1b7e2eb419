"""Tools for people who write an environment: a template, the examination that every server must
pass, and the audit of a verifier.
"""
