"""A small language model on this machine's CPU behind the Responses API: no key, no network."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rollout_kit.errors import ConfigError, ModelError, how_to_install
from rollout_kit.responses import make_response
from rollout_kit.rl.partial import PartialTurns, name_request
from rollout_kit.rl.weights.folder import WeightStep
from rollout_kit.rl.weights.follower import Follower
from rollout_kit.serving.model import Model, ScoreRequest
from rollout_kit.serving.transport.places import ModelPlaces
from rollout_kit.trajectory import Versions, stamp_tokens
from rollout_kit.types import JsonObject

from .chat import check_supported
from .checkpoint import find_folder
from .config import LocalModelConfig
from .conversation import read_conversation
from .output import make_output
from .sampling import read_sampling

if TYPE_CHECKING:
    from .engine import Engine
    from .policy import Policy, Succession
    from .tokenizer import ChatTokenizer

SHIPPED = Path(__file__).parent / "checkpoint"


class LocalModel(Model):
    """The answer depends only on the create params, including the seed, not on other requests."""

    Config = LocalModelConfig
    is_own = True
    needs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("ctranslate2", "tokenizers", "jinja2", "numpy"), "rollout-kit[local]"
    )
    names_weights: ClassVar[frozenset[str]] = frozenset({"model_path", "lora_modules"})
    config: LocalModelConfig
    follower: Follower | None = None
    adapted: Mapping[str, "Engine"] = {}
    """Adapter → the checkpoint with it."""
    partial_turns: PartialTurns | None = None
    _succession: "Succession | None" = None

    def __init__(self, config: LocalModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._places = ModelPlaces(self._num_threads())

    async def start(self) -> None:
        try:
            from .engine import Engine
            from .policy import Succession, load_policy
        except ImportError as error:
            raise ConfigError(
                f"local_model cannot run here ({error}): {how_to_install('rollout-kit[local]')}"
            ) from error
        checkpoint, sync = self._checkpoint(), self.config.weight_sync
        if self.config.resume_turns:
            self.partial_turns = PartialTurns()
        num_threads = self._num_threads()
        adapters = self._adapters()
        await self.identify()
        version = None if sync is None else 0
        self._succession = Succession(
            await asyncio.to_thread(load_policy, checkpoint, version, num_threads=num_threads)
        )
        self.adapted = {
            name: await asyncio.to_thread(
                Engine, checkpoint, num_threads=num_threads, adapter=adapter
            )
            for name, adapter in adapters.items()
        }
        if sync:
            from .cache import remove_leftovers

            await asyncio.to_thread(remove_leftovers)
            self.follower = Follower(sync, self.name, self._use)
            await self.follower.start()

    async def identify(self) -> None:
        if self.config.weight_sync is None:
            await self.identify_weights(self._checkpoint(), *self._adapters().values())

    async def _use(self, step: WeightStep) -> None:
        """Answer with the weights of a step from now on."""
        assert self._succession and self.config.weight_sync
        is_adapter = self.config.weight_sync.mode == "lora_dir"
        await self._succession.replace(
            self._checkpoint() if is_adapter else step.folder,
            step.version,
            num_threads=self._num_threads(),
            adapter=step.folder if is_adapter else None,
        )

    async def stop(self) -> None:
        if self.follower:
            await self.follower.stop()
        if self._succession:
            await self._succession.close()
        for engine in self.adapted.values():
            await engine.close()

    def _num_threads(self) -> int:
        return min(
            self.config.num_threads, self.config.max_concurrent_requests or self.config.num_threads
        )

    @property
    def engine(self) -> "Engine":
        """The engine that answers the next request."""
        return self._policy.engine

    @property
    def tokenizer(self) -> "ChatTokenizer":
        return self._policy.tokenizer

    @property
    def _policy(self) -> "Policy":
        if self._succession is None:
            raise ModelError("the local model has not been started", status=503)
        return self._succession.policy

    async def responses(self, params: JsonObject) -> JsonObject:
        check_supported(params)
        request = name_request(params) if self.partial_turns else ""
        await self.wait_for_version(params)
        async with self._places.hold():
            return await self._respond(params, request)

    async def _respond(self, params: JsonObject, request: str) -> JsonObject:
        policy = self._policy
        name, engine = self._choose_engine(params, policy)
        sampling = read_sampling(
            params,
            temperature=self.config.temperature,
            max_output_tokens=self.config.max_output_tokens,
        )
        asked = read_conversation(params, policy.tokenizer, engine.end_ids)
        prompt = asked.prompt
        if self.partial_turns is None:
            generated = await engine.generate(prompt, sampling)
            versions: list[int | None] = []
        else:
            with self.partial_turns.resume(request) as turn:
                turn.begin(prompt)
                generated = await engine.generate(prompt, sampling, turn, policy.version)
                versions = turn.versions
        wants_ids = params.get("return_token_ids", self.config.return_token_ids)
        temperature = sampling.temperature if wants_ids else None
        output = make_output(params, asked, generated, policy.tokenizer, temperature=temperature)
        if policy.version is not None:
            Versions(policy.version, policy.version).stamp(output)
        stamp_tokens(output, versions)
        return make_response(
            name,
            output,
            {
                "input_tokens": len(prompt),
                "output_tokens": len(generated.token_ids),
                "total_tokens": len(prompt) + len(generated.token_ids),
            },
            incomplete_reason="max_output_tokens" if generated.finish_reason == "length" else None,
            params=params,
        )

    async def count_input(self, params: JsonObject) -> int:
        check_supported(params)
        policy = self._policy
        return len(read_conversation(params, policy.tokenizer, policy.engine.end_ids).prompt)

    async def score_tokens(self, asked: ScoreRequest) -> JsonObject:
        sync = self.config.weight_sync
        if self._succession is None:
            raise ModelError("the local model has not been started", status=503)
        follows = self.follower if sync and sync.mode == "checkpoint_dir" else None
        steps = follows.folder if follows else None
        async with self._succession.of_version(asked.version, steps, self._checkpoint()) as engine:
            if max(asked.token_ids) >= engine.vocabulary_size or min(asked.token_ids) < 0:
                raise ModelError("token_ids: not of this model", status=400, retryable=False)
            return {"log_probs": await engine.score(asked.token_ids, asked.temperature)}

    def load_figures(self) -> JsonObject:
        if self._succession is None:
            return super().load_figures()
        engines = (self.engine, *self.adapted.values())
        busy = {
            "running": sum(each.num_running for each in engines),
            "waiting": self._places.num_waiting + sum(each.num_waiting for each in engines),
        }
        resumed = self.partial_turns.figures() if self.partial_turns else {}
        return {**super().load_figures(), **busy, **resumed}

    def model_name(self) -> str:
        return self.config.model_name

    def model_names(self) -> list[str]:
        return [self.model_name(), *self.config.lora_modules]

    def _choose_engine(self, params: JsonObject, policy: "Policy") -> tuple[str, "Engine"]:
        """The model that a request names."""
        own, asked = self.model_name(), params.get("model")
        if asked in (None, own):
            return own, policy.engine
        if asked not in self.adapted:
            known = ", ".join(self.model_names())
            raise ModelError(f"there is no model '{asked}'; there are: {known}", status=404)
        return asked, self.adapted[asked]

    def _adapters(self) -> dict[str, Path]:
        modules = self.config.lora_modules
        return {name: find_folder(path, f"lora_modules.{name}") for name, path in modules.items()}

    def _checkpoint(self) -> Path:
        path = self.config.model_path
        return find_folder(path, "model_path") if path else SHIPPED
