"""Which files a command may replace."""

from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError


def check_replaceable(
    path: Path, what: str, is_own: Callable[[Path], object], other: str = "output_fpath"
) -> None:
    """ConfigError if something exists that is no earlier result of the same kind, as `is_own`
    tells: it would be lost. `other` is what to choose instead."""
    if path.exists() and not is_own(path):
        raise ConfigError(f"{path} exists, and is no {what}: remove it, or choose another {other}")
