"""What vLLM's metrics tell a run through a `vllm_model`: how wide to open, and that requests wait
before the engine."""

from pathlib import Path
from typing import Any

import pytest
from support import Desk, row
from virtual_time import VirtualTime

from rollout_kit.collecting.pacing.capacity import Size, find_capacity, find_width
from rollout_kit.collecting.pacing.limiter import Adaptive
from rollout_kit.serving import registry
from rollout_kit.serving.service import get
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.types import JsonObject

SimulatedModel = registry.load("responses_api_models", "simulated_model")
VllmModel = registry.load("responses_api_models", "vllm_model")

LABELS = 'engine="0",model_name="simulated"'


UNEVEN_S = {"median": 2.0, "sigma": 0.5}


class Vllm(SimulatedModel):  # type: ignore[misc, valid-type]
    """An endpoint with vLLM's metrics; a share of the requests has reached its engine."""

    reached = 1.0
    num_gpu_blocks: int | None = None
    num_others = 0

    @get("/metrics")
    async def metrics(self) -> str:
        running = int(self.reached * self.stats.in_flight) + self.num_others
        cache = f'block_size="16",cache_dtype="auto",num_gpu_blocks="{self.num_gpu_blocks}"'
        lines = [
            f"vllm:num_requests_running{{{LABELS}}} {running}.0",
            f"vllm:num_requests_waiting{{{LABELS}}} 0.0",
            f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.3",
            f'vllm:cache_config_info{{{cache},engine="0"}} 1.0',
        ]
        return "\n".join(lines)

    @get("/v1/models")
    async def models(self) -> JsonObject:
        return {"data": [{"id": "simulated", "max_model_len": 4096}]}


class Collected:
    """A collection through a `vllm_model` whose server runs already, under a virtual clock."""

    def __init__(self, desk: Desk, time: VirtualTime) -> None:
        self.desk, self.time = desk, time

    def run(self, vllm: Vllm, rollouts: int, parallel: Any, **keys: Any) -> JsonObject:
        rows = [row(f"{number}") for number in range(rollouts)]
        code = self.time.run(self._run(vllm, rows, parallel, keys))
        assert code == 0, self.desk.out.getvalue()[-3000:]
        return self.desk.metrics()

    async def _run(self, vllm: Vllm, rows: list[Any], parallel: Any, keys: JsonObject) -> int:
        sock = bound_socket("127.0.0.1", 0)
        settings = {"model_name": "simulated", "base_url": url_of(sock), **keys}
        await vllm.start()
        async with vllm.serving(sock):
            config = VllmModel.Config.model_validate(settings)
            self.desk.model = VllmModel(config, None, "policy_model")
            return await self.desk.collect(rows, num_samples_in_parallel=parallel)


def vllm_with(latency_s: Any, **figures: Any) -> Vllm:
    settings = {"answer": "text", "latency_s": latency_s}
    made = Vllm(SimulatedModel.Config.model_validate(settings), None, "endpoint")
    for name, value in figures.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collected:
    return Collected(Desk(tmp_path), VirtualTime(monkeypatch))


def find_opening(metrics: JsonObject) -> int:
    """The limit after the first change, which happens before anything is answered."""
    at, before, after, why = metrics["parallelism"]["changes"][0]
    assert at < 5 and before == 8 and "the engine has room" in why
    return after


def test_a_run_opens_at_what_the_cache_holds(collected: Collected) -> None:
    """Short prompts and a quarter of 4,096 tokens: some 1,040 tokens each."""
    vllm = vllm_with(20.0, num_gpu_blocks=20_000)
    found = collected.run(vllm, 400, "auto", max_num_seqs=1000)
    assert find_opening(found) == pytest.approx(0.85 * 320_000 / 1040, rel=0.05)
    assert vllm.stats.peak >= 0.95 * find_opening(found)


def test_a_run_opens_at_what_the_engine_runs_less_what_others_use(collected: Collected) -> None:
    vllm = vllm_with(20.0, num_gpu_blocks=1_000_000, num_others=100)
    assert find_opening(collected.run(vllm, 200, "auto", max_num_seqs=160)) == pytest.approx(
        60, abs=8
    )


def test_the_line_of_a_run_whose_requests_wait_before_the_engine(collected: Collected) -> None:
    found = collected.run(vllm_with(UNEVEN_S, reached=0.65), 600, 64)["bottleneck"]
    assert found["name"] == "model" and found["gain_of_twice_the_parallelism"] == 1.0
    assert found["engine_reached"] == pytest.approx(0.65, abs=0.05)
    assert "wait before the engine" in found["sentence"]
    assert "api_server_count" in found["sentence"] and "up to" not in found["sentence"]


def test_an_engine_that_is_fed_is_not_named(collected: Collected) -> None:
    found = collected.run(vllm_with(UNEVEN_S), 600, 64)["bottleneck"]
    assert found["engine_reached"] > 0.9 and "api_server_count" not in found["sentence"]


ENGINE = {"max_sequences": 256, "kv_cache_tokens": 100_000, "max_model_len": 4000}


@pytest.mark.parametrize(
    ("load", "size", "room"),
    [
        ({}, None, None),
        ({"running": 90, "tokens_each": 10}, None, None),
        ({"max_sequences": 256}, None, 256),
        (ENGINE, Size(100, 400), 256),
        (ENGINE, Size(100, 3600), 85),
        ({**ENGINE, "output_tokens_each": 1600}, Size(100, 400), 50),
        (ENGINE, Size(400, None), 0.85 * 100_000 / (400 + 900)),
        ({**ENGINE, "engine_running": 200, "in_flight": 8}, Size(100, 400), 256 - 192),
        ({**ENGINE, "engine_running": 300}, Size(100, 400), 0),
    ],
)
def test_the_room_of_an_engine(load: JsonObject, size: Size | None, room: float | None) -> None:
    if size:
        load = {**load, "tokens_each": size.tokens(load)}
    assert find_capacity(load) == (room if room is None else pytest.approx(room))


def test_the_width_that_uses_up_a_rate() -> None:
    assert find_width({}, 20) is None
    assert find_width({"requests_per_minute": 600}, 20) == 200
    both = {"requests_per_minute": 600, "tokens_per_minute": 60_000, "tokens_each": 500}
    assert find_width(both, 20) == 40


def test_the_size_of_requests_is_that_of_their_rows() -> None:
    bounded = {"responses_create_params": {"input": "x" * 4000, "max_output_tokens": 512}}
    size = Size.of([bounded])
    assert size and size.prompt == pytest.approx(1000, rel=0.05) and size.allowed == 512
    assert Size.of([bounded, {"responses_create_params": {"input": "x"}}]).allowed is None  # type: ignore[union-attr]
    assert Size.of([]) is None


def test_a_rate_that_is_known_is_opened_to_with_the_first_answers() -> None:
    limiter = Adaptive(1, 8, 4096, seeks=True)
    load = {"running": 8, "in_flight": 8, "requests_per_minute": 600.0, "answered": 0}
    limiter.record_load(0, {**load, "answered_s": 0.0})
    limiter.record_load(20, {**load, "answered_s": 0.0})
    assert limiter() == 8
    limiter.record_load(20.5, {**load, "answered": 8, "answered_s": 160.0})
    assert limiter() == 200 and "the rate limit allows" in str(limiter.changes[-1])
