"""Worker processes that run one function and can be killed at a deadline.

Code that a policy wrote is never run here; it belongs in `sandbox`.
"""
