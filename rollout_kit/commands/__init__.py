"""What each command does around a run: the plan that is shown, progress, the report at the end.

The run itself is in `collector`; parsing arguments and exit codes are in `cli`.
"""
