"""The engine of a trainer, played by the tiny model, and a tokenizer as transformers has it."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_kit.rl.adapters.engine import Sampled, TrainerEngine
from rollout_kit.serving import registry
from rollout_kit.trajectory import Versions

PARTS = registry.load("responses_api_models", "local_model").__module__.rpartition(".")[0]
CHECKPOINT = Path(__file__).parents[2] / "responses_api_models/local_model/checkpoint"


def part(name: str) -> Any:
    return importlib.import_module(f"{PARTS}.{name}")


class TransformersLike:
    """What adapters use of a tokenizer of transformers."""

    def __init__(self) -> None:
        self._own = part("tokenizer").ChatTokenizer(CHECKPOINT)
        files = part("checkpoint")
        self.all_special_ids = files.end_ids(CHECKPOINT, files.read_config(CHECKPOINT))

    def apply_chat_template(
        self,
        messages: Sequence[Any],
        *,
        tools: Any,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> str:
        assert not tokenize
        return self._own._template.render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt
        )

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        encoded = self._own._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids}

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return self._own._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


class PlayedEngine:
    """Samples with the tiny model. `asked` has each request and what was sampled; the version is
    the number of the request."""

    def __init__(self) -> None:
        self.engine = part("engine").Engine(CHECKPOINT, num_threads=1)
        self.asked: list[tuple[list[int], dict[str, Any], str, Sampled]] = []

    async def generate(self, prompt: list[int], sampling: dict[str, Any], session: str) -> Sampled:
        limit = sampling.get("max_tokens", 96)
        heat = sampling["temperature"]
        made = await self.engine.generate(prompt, part("sampling").Sampling(heat, limit, seed=1))
        version = len(self.asked)
        sampled = Sampled(
            list(made.token_ids),
            list(made.log_probs),
            made.finish_reason,
            Versions(version, version + 1),
        )
        self.asked.append((prompt, sampling, session, sampled))
        return sampled

    def with_tokenizer(self, tokenizer: Any = None) -> TrainerEngine:
        return TrainerEngine(self.generate, tokenizer or TransformersLike())
