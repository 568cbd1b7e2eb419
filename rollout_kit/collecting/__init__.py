"""The run itself: plan → schedule → rollout → journal.

Nothing here prints, parses a command line or handles a signal; that belongs in `commands`.
"""
