"""The engine of a trainer as adapters hand it over: its tokenizer, and a function that samples."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...trajectory import Versions
from ...types import JsonObject

SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "max_output_tokens": "max_tokens",
}
"""Create param → its name among the sampling parameters of engines."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine sampled: the token ids with the one that ended the turn, and a log-prob for
    each. `finish_reason` is `stop`, `length`, or `abort`: then the request is made again, with
    `resume_turns` behind these tokens. `token_versions` has the version of each token, if the
    engine tells; else `versions` of all."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: str
    versions: Versions | None = None
    token_versions: Sequence[int] = ()


Generate = Callable[[list[int], JsonObject, str], Awaitable[Sampled]]
"""Prompt, sampling parameters and the id of the rollout's session → what was sampled. All turns of
a rollout have the same session."""


@dataclass(frozen=True, slots=True)
class TrainerEngine:
    """`tokenizer` is one of transformers; `template_keys` are more variables of its template."""

    generate: Generate
    tokenizer: Any
    template_keys: Mapping[str, Any] = field(default_factory=dict)

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], *, opens: bool
    ) -> list[int]:
        """A conversation as token ids; with the start of the assistant's turn if it `opens` one."""
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            add_generation_prompt=opens,
            tokenize=False,
            **self.template_keys,
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode(self, text: str) -> list[int]:
        """A text that the model continues."""
        return self.tokenizer(text)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)


def ends_turn(tokenizer: Any, token_ids: Sequence[int]) -> bool:
    """Whether a special token ends them, for engines that do not say why they stopped."""
    return bool(token_ids) and token_ids[-1] in tokenizer.all_special_ids
