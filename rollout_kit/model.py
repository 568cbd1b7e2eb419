"""Base of model servers: the Responses-API front of one model."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from .errors import THROTTLED, RolloutError
from .service import OPERATIONAL, ServerConfig, Service, get, post
from .types import STATS, JsonObject


class ModelConfig(ServerConfig):
    """What every model server may be given."""

    max_concurrent_requests: int | None = Field(
        None, ge=1, json_schema_extra=OPERATIONAL, description="Most requests at the model at once."
    )
    requests_per_minute: float | None = Field(
        None,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Most requests in a minute, where the endpoint tells none or less is wanted.",
    )
    tokens_per_minute: float | None = Field(
        None, gt=0, json_schema_extra=OPERATIONAL, description="The same for tokens, in and out."
    )


@dataclass(slots=True)
class Lost:
    """What one request lost to its endpoint's rate limit, and to tries that failed otherwise: time
    that is not the model's."""

    rate_limit_s: float = 0.0
    retry_s: float = 0.0

    def add(self, error: RolloutError, seconds: float) -> None:
        """As `retried` tells it."""
        if error.status in THROTTLED:
            self.rate_limit_s += seconds
        else:
            self.retry_s += seconds

    def told(self, response: JsonObject) -> JsonObject:
        """The response, which says what was lost before it came, if anything was."""
        lost = {"rate_limit_s": self.rate_limit_s, "retry_s": self.retry_s}
        stats = {name: seconds for name, seconds in lost.items() if seconds}
        return {**response, STATS: stats} if stats else response


class Model(Service):
    """Answer `POST /v1/responses`. Token ids and log-probs, where asked for and known, travel on
    the last output item of each turn as `prompt_token_ids`, `generation_token_ids`,
    `generation_log_probs`."""

    kind: ClassVar[str] = "responses_api_models"
    Config: ClassVar[type[ServerConfig]] = ModelConfig

    @post("/v1/responses")
    async def responses(self, params: JsonObject) -> JsonObject:
        """The response to one set of create params; ModelError where the model refuses."""
        raise NotImplementedError

    @get("/load")
    async def load(self) -> JsonObject:
        """How busy the model is, as `load_figures` says."""
        return self.load_figures()

    def load_figures(self) -> JsonObject:
        """`running` and `waiting` requests, `throttled` now, 429s so far; and, where vLLM's own
        figures are known, `kv_cache`, `engine_running`, `engine_waiting`, `preemptions` so far."""
        return {"running": 0, "waiting": 0, "throttled": False, "num_429": 0}

    @get("/v1/models")
    async def models(self) -> JsonObject:
        """The model's name in the OpenAI list format."""
        listed = {
            "id": self.model_name(),
            "object": "model",
            "created": 0,
            "owned_by": "rollout_kit",
        }
        return {"object": "list", "data": [listed]}

    def model_name(self) -> str:
        """The model that answers unless the create params name another."""
        return self.name

    def describe(self) -> JsonObject:
        return {**super().describe(), "model": self.model_name()}
