"""The public Python API: servers, collections, re-verifications and stored rollouts.

Users import its names from `rollout_kit`. Nothing here parses a command line, prints, sets an exit
status or handles a signal; that belongs in `commands`.
"""
