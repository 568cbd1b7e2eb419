"""The files of a run: tasks that are read, lines that are written, the journal that makes them
durable, and reading rollouts back.

All other packages read rollouts through here. Nothing here asks a server.
"""
