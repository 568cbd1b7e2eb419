"""What `manifest.yaml` of NeMo Gym 0.7 says about a benchmark or an environment: what it is, and
which YAML file runs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from ...errors import ConfigError

NAME = "manifest.yaml"


@dataclass(frozen=True, slots=True)
class GymManifest:
    """Empty where the file does not say it."""

    config: Path
    """The YAML file that runs it."""
    description: str = ""
    domain: str = ""
    license: str = ""
    is_deprecated: bool = False

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """That of a folder, if it has one; ConfigError if it cannot be read."""
        path = folder / NAME
        if not path.is_file():
            return None
        try:
            given = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            raise ConfigError(f"{path}: cannot be read: {why}") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{path}: is no mapping: write name, kind and description in it")

        def text(key: str) -> str:
            value: Any = given.get(key)
            return " ".join(value.split()) if isinstance(value, str) else ""

        config = (folder / (text("config_path") or "config.yaml")).resolve()
        if not config.is_relative_to(folder.resolve().parent):
            raise ConfigError(f"{path}: config_path: name a file in this folder or beside it")
        is_deprecated = text("lifecycle") == "deprecated"
        return cls(config, text("description"), text("domain"), text("licensing"), is_deprecated)

    def __str__(self) -> str:
        parts = [self.description, self.domain, self.license]
        state = ["deprecated"] if self.is_deprecated else []
        return " · ".join([*filter(None, parts), *state])
