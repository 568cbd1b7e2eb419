"""A scalar reward model: one number for each answer, from a classifier or from vLLM."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from ...errors import ConfigError, VerifyError
from ...responses import content_texts, input_items
from ...types import JsonObject
from ..endpoints.addresses import BaseUrl, HeaderValue
from ..judge import question_of
from ..resources_server import ResourcesServerConfig
from ..service import OPERATIONAL
from .batcher import Batcher
from .classifier import Classifier, Text
from .pooling import Api, PoolingEndpoint

Activation = Literal["none", "sigmoid", "softmax"]


class RewardModelConfig(ResourcesServerConfig):
    """Keys of a resources server that has answers scored by a reward model.

    Example:

        class Config(rk.RewardModelConfig):
            most_words: int = 300
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    url: BaseUrl | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="vLLM's address without a route: http://127.0.0.1:8001.",
    )
    api: Api = Field("classify", description="Route at url: classify, score or pooling.")
    model_name: str | None = Field(
        None, description="Name of the model at url, if it serves several."
    )
    api_key: HeaderValue = Field(
        "",
        repr=False,
        json_schema_extra=OPERATIONAL,
        description="Key that is sent to url as a bearer token.",
    )
    model_path: str | None = Field(
        None, description="Instead of url: folder of a Hugging Face sequence classifier."
    )
    device: str = Field(
        "cpu",
        json_schema_extra=OPERATIONAL,
        description="Device for the model in model_path: cpu, cuda:0.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Data type of the model in model_path."
    )
    form: Literal["chat", "text", "pair"] = Field(
        "chat",
        description="What the model reads. chat: the conversation, in its chat template. text: one"
        " text, made by template. pair: question and answer as two texts.",
    )
    template: str = Field(
        "{question}\n\n{answer}",
        description="The text, of {question}, {conversation} and {answer}.",
    )
    label: int | None = Field(
        None,
        ge=0,
        description="Number of the good class, from 0, if the model has several classes.",
    )
    activation: Activation | None = Field(
        None,
        description="Function that turns scores into the reward: none, sigmoid or softmax. Default:"
        " softmax for several classes, none for a single class.",
    )
    truncate: bool = Field(
        False,
        description="Cut texts that are too long for the model. Otherwise they get no reward.",
    )
    batch_size: int = Field(
        32, ge=1, json_schema_extra=OPERATIONAL, description="Maximum number of answers in a batch."
    )
    num_batches_in_flight: int = Field(
        4,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of concurrent batches at url.",
    )
    score_timeout_s: float = Field(
        120.0, gt=0, json_schema_extra=OPERATIONAL, description="Time limit of one request to url."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "RewardModelConfig":
        if (self.url is None) == (self.model_path is None):
            raise ValueError("set either url or model_path, which says where the model is")
        if self.url is not None and (self.api == "score") != (self.form == "pair"):
            raise ValueError("api: score takes form: pair, and the other routes take chat or text")
        try:
            self.template.format(question="", conversation="", answer="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(
                f"template: {error!r}: it may name {{question}}, {{conversation}} and {{answer}};"
                " any other brace is written twice"
            ) from None
        return self


class ScoredAnswer(NamedTuple):
    """What a reward model says of an answer.

    Example:

        print(rk.ScoredAnswer(0.73, [1.0]).reward)
    """

    reward: float
    scores: list[float]
    """As the model gives them, before sigmoid or softmax, one for each class."""


class RewardModel:
    """Scores answers with a reward model, in batches. Call `start` and `stop` with your server.

    Example:

        class Pleasant(rk.ResourcesServer):
            Config = rk.RewardModelConfig

            async def start(self):
                self.model = rk.RewardModel(self.config, self.name)
                await self.model.start()

            async def stop(self):
                await self.model.stop()

            async def verify(self, body: rk.VerifyRequest) -> rk.VerifyResponse:
                answer = rk.output_text(body.response)
                found = await self.model.score(body.responses_create_params, answer)
                return body.scored(0.5 * found.reward + 0.5 * float(len(answer) < 500))
    """

    def __init__(self, config: RewardModelConfig, name: str) -> None:
        self._config, self._name = config, name
        self._endpoint: PoolingEndpoint | None = None
        self._batcher: Batcher[Text, list[float]] | None = None

    async def start(self) -> None:
        """Load the model of `model_path`; ConfigError if that is not possible."""
        config, num_in_flight = self._config, self._config.num_batches_in_flight
        if config.url is not None:
            self._endpoint = PoolingEndpoint(
                config.url,
                config.api,
                config.model_name,
                config.api_key,
                config.score_timeout_s,
                config.truncate,
            )
            work = self._endpoint.score
        else:
            assert config.model_path is not None
            model = await asyncio.to_thread(
                Classifier,
                config.model_path,
                device=config.device,
                dtype=config.dtype,
                truncates=config.truncate,
            )
            work = partial(asyncio.to_thread, model.score)
            num_in_flight = 1  # one batch uses the whole device
        self._batcher = Batcher(work, size=config.batch_size, num_in_flight=num_in_flight)

    async def stop(self) -> None:
        if self._batcher is not None:
            await self._batcher.stop()
        if self._endpoint is not None:
            await self._endpoint.close()

    async def score(self, params: JsonObject, answer: str) -> ScoredAnswer:
        """Score one answer to the request's messages; VerifyError if the model gives no score."""
        if self._batcher is None:
            raise ConfigError(f"{self._name}: the reward model was not started: await start()")
        scores = await self._batcher.ask(self._write(params, answer))
        return ScoredAnswer(self._choose(scores), scores)

    def _write(self, params: JsonObject, answer: str) -> Text:
        """What the model reads."""
        config, question = self._config, question_of(params)
        if config.form == "pair":
            return question, answer
        messages = read_messages(params)
        if config.form == "chat":
            return [*messages, {"role": "assistant", "content": answer}]
        said = "\n\n".join(f"{each['role']}: {each['content']}" for each in messages)
        return config.template.format(question=question, conversation=said, answer=answer)

    def _choose(self, scores: Sequence[float]) -> float:
        """The reward of the scores; VerifyError if they do not fit the configuration."""
        label, activation = self._config.label, self._config.activation
        if len(scores) == 1 and activation == "softmax":
            what = "has one class, of which softmax is always 1: set activation to sigmoid or none"
            raise VerifyError(f"the reward model {what}", retryable=False)
        if (len(scores) > 1 and label is None) or (label or 0) >= len(scores):
            raise VerifyError(
                f"the reward model has {len(scores)} classes: set label to the good one, from 0 to"
                f" {len(scores) - 1}",
                retryable=False,
            )
        score = scores[label or 0]
        if activation == "sigmoid":
            odds = math.exp(-abs(score))
            return (1.0 if score > 0 else odds) / (1 + odds)
        if activation == "softmax" or (activation is None and len(scores) > 1):
            most = max(scores)
            return math.exp(score - most) / math.fsum(math.exp(each - most) for each in scores)
        return score


def read_messages(params: JsonObject) -> list[JsonObject]:
    """The texts of a request's messages, with their roles, as a chat template takes them."""
    found: list[JsonObject] = []
    if isinstance(said := params.get("instructions"), str) and said:
        found.append({"role": "system", "content": said})
    for item in input_items(params):
        if isinstance(role := item.get("role"), str):
            text = "\n".join(content_texts(item.get("content")))
            found.append({"role": "system" if role == "developer" else role, "content": text})
    return found
