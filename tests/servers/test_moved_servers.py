"""Servers that move to other URLs while others call them."""

import asyncio
import json
import os
from pathlib import Path

import orjson
import pytest
from endpoint import endpoint

from rollout_kit.config.instance_keys import split_keys
from rollout_kit.config.instances import MODELS, RESOURCES, Instance
from rollout_kit.config.keys import ValidateConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.launch import serve
from rollout_kit.launch.placement import HttpLimits
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Http, Peers, over_http
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject


def test_a_call_goes_where_the_server_is_now() -> None:
    async def main(urls: list[str]) -> list[str]:
        client, found = HttpClient(), []
        peers = Peers({"model": Http("model", urls[:1], client)})
        for url in urls:
            peers.move("model", [url])
            asked = {"input": [{"content": "x"}]}
            found.append((await peers.call("model", "/responses", asked))["is"])
        peers.move("unknown", urls[:1])  # of another process
        await client.close()
        return found

    with (
        endpoint(lambda body: (200, {"is": "first"})) as first,
        endpoint(lambda body: (200, {"is": "second"})) as second,
    ):
        assert asyncio.run(main([first.url, second.url])) == ["first", "second"]


@pytest.mark.parametrize("kind", [MODELS, RESOURCES])
def test_attempts_at_a_rollout_go_to_one_worker_of_a_model(kind: str) -> None:
    """It has the tokens of a turn that was stopped; a verifier's session may go to any worker."""

    async def main(urls: list[str]) -> list[set[str]]:
        client, found = HttpClient(), []
        plan = HttpLimits().plan([Instance("model", kind, "", {})])
        peers = Peers(over_http({**plan, "urls": {"model": urls}, "tokens": {}}, client))
        for number in range(20):
            found.append(set())
            for _ in range(20):
                with entered(Session.of(("abc", number), None, "run")):
                    asked = {"input": [{"content": "x"}]}
                    found[-1].add((await peers.call("model", "/responses", asked))["is"])
        await client.close()
        return found

    with (
        endpoint(lambda body: (200, {"is": "first"})) as first,
        endpoint(lambda body: (200, {"is": "second"})) as second,
    ):
        found = asyncio.run(main([first.url, second.url]))
    assert {len(each) for each in found} == {1 if kind == MODELS else 2}
    assert set.union(*found) == {"first", "second"}


def test_a_server_process_reads_of_moves_also_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    transport = Http("model", ["http://127.0.0.1:1"], HttpClient())
    line = orjson.dumps({"server": "model", "urls": ["http://127.0.0.1:2/"]}) + b"\n"

    async def main() -> bool:
        ended = asyncio.Event()
        parent = serve.FromParent(ended)
        parent.peers = Peers({"model": transport})
        asyncio.get_running_loop().add_reader(out, lambda: None)
        for piece in (line[:9], line[9:]):
            os.write(into, piece)
            parent.read()
        os.close(into)
        parent.read()
        return ended.is_set()

    with open(out, "rb") as stream:
        monkeypatch.setattr(serve.sys, "stdin", stream)
        assert asyncio.run(main())
    assert transport.urls == ["http://127.0.0.1:2"]


def test_on_ray_replicas_are_servers() -> None:
    common, own = split_keys({"placement": "ray", "num_replicas": 4, "model": "m"})
    assert (common["num_workers"], own) == (4, {"model": "m"})
    common, own = split_keys({"num_replicas": 4, "model": "m"})
    assert (common, own) == ({}, {"num_replicas": 4, "model": "m"})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"num_workers": 2},
            "each process would start all copies of the model: write num_replicas",
        ),
        ({"placement": "ray", "num_workers": 2, "num_replicas": 4}, "num_workers: leave it out"),
        ({"placement": "ray", "num_replicas": 4}, ""),
        ({"num_workers": 2, "base_url": "http://h.test/v1"}, ""),
    ],
)
def test_copies_of_a_model_are_asked_for_by_one_key(
    tmp_path: Path, keys: JsonObject, says: str
) -> None:
    model = {"responses_api_models": {"vllm_model": {"model_name": "m", **keys}}}
    (tmp_path / "run.yaml").write_text(json.dumps({"policy_model": model}))
    words = ["+config_paths=[run.yaml]"]
    if says:
        with pytest.raises(ConfigError, match=says):
            load(words, ValidateConfig, tmp_path)
    else:
        assert not load(words, ValidateConfig, tmp_path).warnings


@pytest.mark.parametrize(
    ("implementation", "old", "meant"),
    [
        ("vllm_model", "num_workers", "num_replicas"),
        ("simulated_model", "num_replicas", "num_workers"),
    ],
)
def test_on_ray_the_other_key_is_accepted_with_a_line(
    tmp_path: Path, implementation: str, old: str, meant: str
) -> None:
    model = {"model_name": "m", "placement": "ray", old: 3}
    blocks = {"policy_model": {"responses_api_models": {implementation: model}}}
    (tmp_path / "run.yaml").write_text(json.dumps(blocks))
    config = load(["+config_paths=[run.yaml]"], ValidateConfig, tmp_path)
    assert config.instances["policy_model"].num_workers == 3
    [warning] = config.warnings
    assert warning.startswith(f"policy_model: {old} is taken for {meant}")


def test_without_ray_a_command_says_how_to_get_it(tmp_path: Path) -> None:
    from importlib.util import find_spec

    if find_spec("ray"):
        pytest.skip("Ray is installed")
    from test_chaos_suite import Site

    site = Site(tmp_path)
    text = (tmp_path / "run.yaml").read_text()
    (tmp_path / "run.yaml").write_text(
        text.replace("openai_model:", "openai_model:\n      placement: ray", 1)
    )
    status, said = site.ended(site.start("run", *site.config))
    assert status == 1 and "needs Ray" in said and "rollout-kit[ray]" in said
    assert "Traceback" not in said
