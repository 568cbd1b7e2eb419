"""Arms: the ways in which each task of a run is asked. Templates, their reading from YAML, and what
an arm makes of a row.
"""
