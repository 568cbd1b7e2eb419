"""Convert chat messages to token ids and back, with a checkpoint's tokenizer and template."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from rollout_kit.errors import TaskError
from rollout_kit.types import JsonObject

from .checkpoint import required, template_source


class ChatTokenizer:
    """Templates run in the same environment as in transformers."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(required(checkpoint, "tokenizer.json")))
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(template_source(checkpoint))

    def prompt(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject] | None,
        *,
        opens: bool = True,
    ) -> list[int]:
        """The token ids of the prompt for the assistant's next turn; of the messages alone unless
        it `opens` that turn."""
        try:
            text = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=opens
            )
        except TemplateError as error:
            raise TaskError(f"the chat template refuses this input: {error}", status=400) from error
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def raw_prompt(self, text: str) -> list[int]:
        """The token ids of a text that the model continues."""
        return self._tokenizer.encode(text).ids

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens without special tokens, such as the end of turn."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """The text of one token; U+FFFD if it is only a part of a character."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for templates. jinja's filter escapes HTML and sorts keys, unlike training data."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
