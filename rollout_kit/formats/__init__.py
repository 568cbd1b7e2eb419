"""Reads the runs of other tools as rollouts, one module for each tool.

`importing` finds out which tool wrote a file, and makes lines of ours of what its module reads.
"""
