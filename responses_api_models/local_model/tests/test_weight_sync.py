"""local_model follows a trainer: the weights change while requests are in flight."""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import write_adapter
from support import use_model

from rollout_kit.errors import ModelError
from rollout_kit.responses import output_text
from rollout_kit.rl import CheckpointManager
from rollout_kit.serving import registry
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.http import HttpClient

LocalModel: Any = registry.load("responses_api_models", "local_model")
CHECKPOINT = Path(sys.modules[LocalModel.__module__].__file__ or "").parent / "checkpoint"

ASKED = {"input": "What is 12+30?", "temperature": 0, "return_token_ids": True}


@pytest.fixture(autouse=True, scope="module")
def cache_of_its_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield


def write_step(folder: Path, version: int, *, changed: bool = True) -> Path:
    """The shipped checkpoint as a trainer's step; if it is changed, each version differs."""
    with CheckpointManager(folder, keep_last=100, base=CHECKPOINT).write(version) as step:
        raw = bytearray((CHECKPOINT / "model.safetensors").read_bytes())
        if changed:
            tail = np.frombuffer(raw, np.uint8)[-512:]
            tail[::2] = (tail[::2].astype(int) + version) % 256
        (step / "model.safetensors").write_bytes(raw)
    return folder / f"step_{version}"


def with_follower(scenario: Any, folder: Path, **config: Any) -> Any:
    """Run `scenario(model)`; the model looks for new weights only when it is asked to."""
    sync = {"path": str(folder), "poll_s": 1e6, **config.pop("sync", {})}
    return use_model(LocalModel, scenario, weight_sync=sync, **config)


def versions(response: dict[str, Any]) -> tuple[int, int]:
    last = response["output"][-1]
    return last["policy_version_first"], last["policy_version_last"]


def test_each_response_has_the_version_that_wrote_it(tmp_path: Path) -> None:
    async def scenario(model: Any) -> None:
        first = await model.responses(ASKED)
        write_step(tmp_path, 1, changed=False)
        write_step(tmp_path, 4)
        assert versions(await model.responses(ASKED)) == (0, 0)
        assert (await model.load_weights({}))["version"] == 4
        changed = await model.responses(ASKED)
        write_step(tmp_path, 5, changed=False)
        await model.load_weights({})
        again = await model.responses(ASKED)
        assert versions(first) == (0, 0) and versions(changed) == (4, 4)
        assert versions(again) == (5, 5)
        told = [each["output"][-1]["generation_log_probs"] for each in (first, changed, again)]
        assert told[0] == told[2] != told[1]

    with_follower(scenario, tmp_path)


def test_tokens_are_scored_by_the_weights_of_their_version_the_first_ones_too(
    tmp_path: Path,
) -> None:
    async def scenario(model: Any) -> None:
        async def score(version: int | None = None) -> list[float]:
            asked = ScoreRequest(token_ids=[9, 8, 7, 6], version=version)
            return (await model.score_tokens(asked))["log_probs"]

        known = {0: await score()}
        for version in (1, 2):
            write_step(tmp_path, version)
            await model.load_weights({})
            known[version] = await score()
        assert len(set(map(str, known.values()))) == 3
        for version, log_probs in known.items():
            assert await score(version) == log_probs
        with pytest.raises(ModelError, match="version 7 of the weights is gone"):
            await score(7)

    with_follower(scenario, tmp_path)


NUM_UPDATES = 8


def test_requests_in_flight_end_on_the_old_weights_and_none_fails(tmp_path: Path) -> None:
    """Every answer is the one that the version on its label gives alone."""
    asked = {**ASKED, "temperature": 1.0, "max_output_tokens": 48}
    answers: list[tuple[int, Any]] = []

    async def scenario(model: Any) -> None:
        is_over, came = False, asyncio.Event()

        async def client(number: int) -> None:
            turn = 0
            while not is_over:
                turn += 1
                seed = number * 10_000 + turn
                answers.append((seed, await model.responses({**asked, "seed": seed})))
                came.set()

        clients = [asyncio.create_task(client(number)) for number in range(4)]
        for version in range(1, NUM_UPDATES + 1):
            await asyncio.to_thread(write_step, tmp_path, version)
            assert (await model.load_weights({}))["version"] == version
            assert len(conversions()) <= 2
            until = len(answers) + 8
            while len(answers) < until:
                came.clear()
                await came.wait()
        is_over = True
        await asyncio.gather(*clients)

    with_follower(scenario, tmp_path, num_threads=2)
    assert conversions() == []
    by_version = {first: [] for first, last in (versions(answer) for _, answer in answers)}
    for seed, answer in answers:
        first, last = versions(answer)
        assert first == last
        by_version[first].append((seed, answer))
    assert set(by_version) == set(range(NUM_UPDATES + 1))

    async def alone(model: Any) -> None:
        for seed, answer in by_version[version][:4]:
            again = await model.responses({**asked, "seed": seed})
            for field in ("generation_token_ids", "generation_log_probs"):
                assert again["output"][-1][field] == answer["output"][-1][field]

    for version in (0, 3, NUM_UPDATES):
        served = tmp_path / "served" / str(version)
        if version:
            shutil.copytree(tmp_path / f"step_{version}", served / f"step_{version}")
        with_follower(alone, served)


def conversions() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("rollout_kit-local_model-*"))


def test_a_bad_step_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(model: Any) -> None:
        half = write_step(tmp_path, 1)
        (half / "STABLE").unlink()
        corrupt = write_step(tmp_path, 2)
        raw = bytearray((corrupt / "model.safetensors").read_bytes())
        raw[-1] ^= 1
        (corrupt / "model.safetensors").write_bytes(raw)
        other = write_step(tmp_path, 3)
        (other / "STABLE").write_text("")
        (other / "tokenizer.json").unlink()
        told = await model.load_weights({})
        assert told["version"] == 0 and set(told["refused"]) == {"step_2", "step_3"}
        assert "checksum" in told["refused"]["step_2"]
        assert "has no tokenizer.json" in told["refused"]["step_3"]
        assert versions(await model.responses(ASKED)) == (0, 0)
        write_step(tmp_path, 4)
        assert (await model.load_weights({}))["version"] == 4

    with_follower(scenario, tmp_path)


def test_adapters_are_followed_too(tmp_path: Path) -> None:
    steps = tmp_path / "steps"

    async def scenario(model: Any) -> None:
        before = await model.responses(ASKED)
        with CheckpointManager(steps).write(1) as folder:
            made = write_adapter(tmp_path / "adapter")
            for path in made.iterdir():
                shutil.copy(path, folder / path.name)
        assert (await model.load_weights({}))["version"] == 1
        after = await model.responses(ASKED)
        assert versions(after) == (1, 1) and output_text(after) != output_text(before)

    with_follower(scenario, steps, sync={"mode": "lora_dir"})


def test_the_settings_name_the_source_and_not_the_weights(tmp_path: Path) -> None:
    async def scenario(model: Any) -> None:
        before = model.describe()["settings"]
        assert before["weight_sync"] == {"mode": "checkpoint_dir", "path": str(tmp_path)}
        assert not {"weights", "model_path"} & before.keys()
        write_step(tmp_path, 1)
        await model.load_weights({})
        assert model.describe()["settings"] == before

    with_follower(scenario, tmp_path, model_path=str(CHECKPOINT))


def test_a_trainer_asks_for_an_update_over_http(tmp_path: Path) -> None:
    async def scenario(model: Any) -> None:
        write_step(tmp_path, 3)
        sock, client = bound_socket("127.0.0.1", 0), HttpClient()
        async with model.serving(sock):
            url = url_of(sock)
            told = await client.post(f"{url}/load_weights", b"{}")
            assert b'"version":3' in told.raw and b'"updates":1' in told.raw
            reply = await client.post(f"{url}/v1/responses", b'{"input": "What is 1+1?"}')
            assert reply.headers.get("x-policy-version") == "3"
            await client.close()

    with_follower(scenario, tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"weight_sync": {"mode": "external"}}, "local_model knows checkpoint_dir and lora_dir"),
        ({"weight_sync": {"path": "x"}, "lora_modules": {"a": "b"}}, "beside weight_sync"),
        ({"weight_sync": {}}, "needs the path"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LocalModel.Config(**config)
