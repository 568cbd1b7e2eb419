"""The prompts of a judge, which may depend on the category of a row."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from rollout_kit import JsonObject

Question = list[JsonObject]
"""Messages to the judge."""


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """A text for the user's message, and one for the system's, or one for each category."""

    user: str
    system: str | dict[str, str] | None = None

    def has_category(self, category: str | None) -> bool:
        return not isinstance(self.system, dict) or category in self.system

    def fill(self, category: str | None = None, **fields: str) -> Question:
        """The messages; KeyError for an unknown category."""
        system = self.system
        if isinstance(system, dict):
            system = system[str(category)]
        found = [] if system is None else [{"role": "system", "content": system}]
        return [*found, {"role": "user", "content": self.user.format(**fields)}]


def read_prompt(path: Path) -> JudgePrompt:
    return JudgePrompt(**yaml.safe_load(path.read_text("utf-8")))
