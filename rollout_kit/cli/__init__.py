"""One small module per command: it parses arguments, calls the package that does the work, and
returns the exit code.
"""

import atexit
import gc

# what a command imports stays until its end: looking for garbage in it takes a fifth of a short run
gc.set_threshold(500_000)
atexit.register(gc.freeze)
