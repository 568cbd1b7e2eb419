"""One small module per command: it parses arguments, calls the package that does the work, and
returns the exit code.
"""

import gc

gc.set_threshold(50_000)  # what a command imports stays: looking for garbage in it takes time
