"""A sequence classifier of Hugging Face, in this process. Only this module imports torch."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError, VerifyError, how_to_install, on_one_line
from ...types import JsonObject

LIBRARIES = ("torch", "transformers")

EXTRA = "rollout-kit[classifier]"

Text = str | tuple[str, str] | list[JsonObject]
"""A text, a question with its answer, or the messages of a conversation."""


class Classifier:
    """The model in a folder; ConfigError if it cannot be loaded. Code of a folder is never run."""

    def __init__(self, path: str, *, device: str, dtype: str, truncates: bool) -> None:
        try:
            self._torch, transformers = map(importlib.import_module, LIBRARIES)
        except ImportError as error:
            raise ConfigError(
                f"model_path: needs {' and '.join(LIBRARIES)} ({error}): {how_to_install(EXTRA)}"
            ) from None
        if not (Path(path).expanduser() / "config.json").is_file():
            raise ConfigError(f"model_path: {path}: no folder of a model, with its config.json")
        where = str(Path(path).expanduser())
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(where)
            model, about = transformers.AutoModelForSequenceClassification.from_pretrained(
                where, dtype=getattr(self._torch, dtype), output_loading_info=True
            )
            self._model = model.to(device).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"model_path: {path}: {on_one_line(str(error), 500)}") from None
        if missing := sorted(about["missing_keys"]):
            raise ConfigError(
                f"model_path: {path}: has no weights for {', '.join(missing[:3])}: it is no"
                " classifier, and its scores would be random"
            )
        self._device, self._truncates = device, truncates
        known = (
            getattr(model.config, "max_position_embeddings", None),
            self._tokenizer.model_max_length,
        )
        self._most = min(each for each in known if each)
        # a decoder finds the last token of a text by the padding, so a token that can be a part of
        # the text must not stand in for one that is missing
        self._pads = model.config.pad_token_id is not None
        if self._pads:
            token = self._tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
            self._tokenizer.pad_token = token

    def score(self, texts: Sequence[Text]) -> list[list[float]]:
        """The logits of each text, one for each class. Blocks while the model computes. A model
        without a token for padding reads one text at a time. VerifyError for a text that is too
        long, or has a token that would end its message."""
        encoded = [self._encode(text) for text in texts]
        if self._pads:
            return self._compute(self._tokenizer.pad(encoded, return_tensors="pt"))
        alone = (each.convert_to_tensors("pt", prepend_batch_axis=True) for each in encoded)
        return [scores for each in alone for scores in self._compute(each)]

    def _compute(self, inputs: Any) -> list[list[float]]:
        with self._torch.inference_mode():
            return self._model(**inputs.to(self._device)).logits.float().cpu().tolist()

    def _encode(self, text: Text) -> Any:
        limits = {
            "truncation": self._truncates,
            "max_length": self._most if self._truncates else None,
        }
        if isinstance(text, list):
            for message in text:
                self._check_tokens(str(message["content"]))
            if self._tokenizer.chat_template is None:
                raise VerifyError(
                    "the reward model has no chat template: set form: text or form: pair",
                    retryable=False,
                )
            rendered = self._tokenizer.apply_chat_template(text, tokenize=False)
            found = self._tokenizer(rendered, add_special_tokens=False, **limits)
        else:
            parts = (text,) if isinstance(text, str) else text
            for part in parts:
                self._check_tokens(part)
            found = self._tokenizer(*parts, **limits)
        if (number := len(found["input_ids"])) > self._most:
            raise VerifyError(
                f"{number:,} tokens are too long for the reward model, which reads {self._most:,}:"
                " truncate: true would cut them",
                retryable=False,
            )
        return found

    def _check_tokens(self, text: str) -> None:
        """An answer with a special token could close its message and write the next one."""
        for token in self._tokenizer.all_special_tokens:
            if token in text:
                raise VerifyError(
                    f"a text has the special token {token!r} of the reward model: it could be read"
                    " as more than a text",
                    retryable=False,
                )
