"""One small module per command: it parses arguments, calls the package that does the work, and
returns the exit code.
"""
