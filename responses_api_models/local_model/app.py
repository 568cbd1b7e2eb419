"""A small language model on this machine's CPU behind the Responses API: no key, no network."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict, Field

from rollout_kit.endpoints.chat import RAW
from rollout_kit.endpoints.raw import raw_text
from rollout_kit.errors import ConfigError, ModelError, how_to_install
from rollout_kit.responses import Item, make_response, message_item
from rollout_kit.serving.model import Model, ModelConfig
from rollout_kit.serving.service import OPERATIONAL
from rollout_kit.types import JsonObject

from .chat import chat_messages, check_supported, output_items, template_tools
from .sampling import read_sampling

if TYPE_CHECKING:
    from .engine import Engine, Generated
    from .tokenizer import ChatTokenizer

SHIPPED = Path(__file__).parent / "checkpoint"


class LocalModelConfig(ModelConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_path: str | None = Field(
        None, description="Qwen3 checkpoint folder, Hugging Face layout; empty: the shipped one."
    )
    lora_modules: dict[str, str] = Field(
        {}, description="LoRA adapters: name → folder; a request's `model` names one."
    )
    model_name: str = Field("tiny", description="The name that responses give the model.")
    max_output_tokens: int = Field(256, ge=1, description="Where the create params name no limit.")
    temperature: float = Field(1.0, ge=0, description="Where the create params name none.")
    return_token_ids: bool = Field(
        False, description="Give token ids and log-probs without being asked."
    )
    num_threads: int = Field(
        1, ge=1, json_schema_extra=OPERATIONAL, description="Responses generated at a time."
    )


class LocalModel(Model):
    """The answer depends only on the create params, including the seed, not on other requests."""

    Config = LocalModelConfig
    is_own = True
    needs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("ctranslate2", "tokenizers", "jinja2", "numpy"), "rollout-kit[local]"
    )
    names_weights: ClassVar[frozenset[str]] = frozenset({"model_path", "lora_modules"})
    config: LocalModelConfig
    engine: "Engine | None" = None
    adapted: Mapping[str, "Engine"] = {}
    """Adapter → the checkpoint with it."""
    tokenizer: "ChatTokenizer"

    async def start(self) -> None:
        try:
            from .engine import Engine
            from .tokenizer import ChatTokenizer
        except ImportError as error:
            raise ConfigError(
                f"local_model cannot run here ({error}): {how_to_install('rollout-kit[local]')}"
            ) from error
        checkpoint = self._checkpoint()
        num_threads = min(
            self.config.num_threads, self.config.max_concurrent_requests or self.config.num_threads
        )
        adapters = {
            name: _folder(path, f"lora_modules.{name}")
            for name, path in self.config.lora_modules.items()
        }
        await self.identify_weights(checkpoint, *adapters.values())
        self.engine = await asyncio.to_thread(Engine, checkpoint, num_threads=num_threads)
        self.adapted = {
            name: await asyncio.to_thread(
                Engine, checkpoint, num_threads=num_threads, adapter=adapter
            )
            for name, adapter in adapters.items()
        }
        self.tokenizer = ChatTokenizer(checkpoint)

    async def stop(self) -> None:
        for engine in (self.engine, *self.adapted.values()):
            if engine:
                await engine.close()

    async def responses(self, params: JsonObject) -> JsonObject:
        name, engine = self._choose_engine(params)
        check_supported(params)
        sampling = read_sampling(
            params,
            temperature=self.config.temperature,
            max_output_tokens=self.config.max_output_tokens,
        )
        if (text := raw_text(params)) is not None:
            prompt = self.tokenizer.raw_prompt(text)
        else:
            prompt = self.tokenizer.prompt(chat_messages(params), template_tools(params))
        generated = await engine.generate(prompt, sampling)
        return make_response(
            name,
            self._output(params, prompt, generated),
            {
                "input_tokens": len(prompt),
                "output_tokens": len(generated.token_ids),
                "total_tokens": len(prompt) + len(generated.token_ids),
                # the newest Response of the OpenAI SDK requires this
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            },
            incomplete_reason="max_output_tokens" if generated.finish_reason == "length" else None,
            params=params,
        )

    def load_figures(self) -> JsonObject:
        if self.engine is None:
            return super().load_figures()
        engines = (self.engine, *self.adapted.values())
        busy = {
            "running": sum(each.num_running for each in engines),
            "waiting": sum(each.num_waiting for each in engines),
        }
        return {**super().load_figures(), **busy}

    def model_name(self) -> str:
        return self.config.model_name

    def _choose_engine(self, params: JsonObject) -> tuple[str, "Engine"]:
        """The model that a request names. Without adapters any name is the checkpoint's."""
        if self.engine is None:
            raise ModelError("the local model has not been started", status=503)
        own, asked = self.model_name(), params.get("model")
        if not self.adapted or asked in (None, own):
            return own, self.engine
        if asked not in self.adapted:
            known = ", ".join([own, *self.adapted])
            raise ModelError(f"there is no model '{asked}'; there are: {known}", status=404)
        return asked, self.adapted[asked]

    def _checkpoint(self) -> Path:
        path = self.config.model_path
        return _folder(path, "model_path") if path else SHIPPED

    def _output(self, params: JsonObject, prompt: list[int], generated: "Generated") -> list[Item]:
        """The generated items; none if the prompt left no room, as with vLLM."""
        if not generated.token_ids:
            return []
        said = self.tokenizer.text(generated.token_ids)
        items = [message_item(said)] if params.get(RAW) else output_items(said)
        if generated.finish_reason == "length":
            items[-1]["status"] = "incomplete"
        # by token only if the generation is nothing but the text
        if _wants_logprobs(params) and [item["type"] for item in items] == ["message"]:
            items[0]["content"][0]["logprobs"] = self._logprobs(generated)
        if params.get("return_token_ids", self.config.return_token_ids):
            items[-1] |= {
                "prompt_token_ids": prompt,
                "generation_token_ids": list(generated.token_ids),
                "generation_log_probs": list(generated.log_probs),
            }
        return items

    def _logprobs(self, generated: "Generated") -> list[JsonObject]:
        ends = 1 if generated.finish_reason == "stop" else 0
        texts = [self.tokenizer.token_text(token_id) for token_id in generated.token_ids]
        pairs = list(zip(texts, generated.log_probs, strict=True))
        return [
            {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
            for text, value in pairs[: len(pairs) - ends]
        ]


def _folder(path: str, name: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{name} {path}: no such folder")
    return folder


def _wants_logprobs(params: JsonObject) -> bool:
    included = params.get("include") or ()
    return "message.output_text.logprobs" in included or bool(params.get("top_logprobs"))
