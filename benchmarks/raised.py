"""Allow thousands of connections."""

import resource

OPEN_FILES = 65_536


def raise_file_limit() -> int:
    """Raise the limit of open files as far as allowed; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    given = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (given, hard))
    return given
