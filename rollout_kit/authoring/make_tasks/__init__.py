"""Tasks from packages with tests: plant faults that the tests find, and write Harbor's folders.

Code of a package runs in sessions of the sandbox only.
"""
