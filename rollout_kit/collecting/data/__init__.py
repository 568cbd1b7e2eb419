"""From datasets listed in YAML to files of tasks that fit their verifier.

Reading tasks in a run belongs in `store`.
"""
