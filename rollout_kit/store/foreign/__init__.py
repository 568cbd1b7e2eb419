"""What this version did not write. Files of other programs are read through a copy in our format,
so that no reader of rollouts needs to know another. `versions` knows lines of other versions.
"""
