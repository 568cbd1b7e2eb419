"""Several sources of tasks for one training: their file, their shares, and whose turn it is."""
