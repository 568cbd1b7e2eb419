"""Versions of the policy's weights are data: on each turn, rollout and group, and on replies."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import Bench, asked, row

import rollout_kit as rk
from rollout_kit.api.testing import ScriptedModel, text_response
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.trajectory import (
    Versions,
    sequences,
    span_versions,
    stamp_tokens,
    versions_of,
    without_tokens,
)
from rollout_kit.types import JsonObject


class Versioned(ScriptedModel):
    """Answers with the question; the weights change to the next version during each answer."""

    policy_version = 3

    async def responses(self, params: JsonObject) -> JsonObject:
        self.policy_version += 1
        response = text_response(asked(params))
        Versions(self.policy_version - 1, self.policy_version).stamp(response["output"])
        self.policy_version += 5  # and once more before the reply is sent
        return response


def item(generation: list[int], first: Any = None, last: Any = None) -> dict[str, Any]:
    versions = {"policy_version_first": first, "policy_version_last": last}
    tokens = {"prompt_token_ids": [1], "generation_token_ids": generation}
    return tokens | ({} if first is None else versions)


def test_the_versions_of_turns_rollouts_and_groups_are_the_least_and_the_greatest() -> None:
    output = [item([2], 4, 7), {"type": "function_call_output"}, item([3], 5, 5), item([4])]
    turns = [turn for sequence in sequences(output) for turn in sequence.turns]
    assert [(turn.version_first, turn.version_last) for turn in turns] == [
        (4, 7),
        (5, 5),
        (None, None),
    ]
    assert versions_of(output) == Versions(4, 7) and versions_of([item([2])]) is None
    assert span_versions([Versions(4, 7), None, Versions(2, 3)]) == (2, 7)
    assert versions_of(["text", {"policy_version_first": "x"}]) is None


def test_tokens_have_versions_of_their_own_where_spans_are_known() -> None:
    spanning, plain, torn = item([5, 6, 7]), item([8, 9]), item([2, 3], 4, 5)
    stamp_tokens([spanning], [4, 4, 6])
    stamp_tokens([plain], [6, 6])
    assert spanning["policy_version_spans"] == [[0, 2, 4], [2, 3, 6]]
    assert "policy_version_spans" not in plain and plain["policy_version_last"] == 6
    untold = item([1])
    stamp_tokens([untold], [None])
    assert "policy_version_first" not in untold
    torn["policy_version_spans"] = [[0, 1, 4], [1, 3, 5]]  # more than its tokens
    turns = [turn for one in sequences([spanning, plain, torn]) for turn in one.turns]
    assert [turn.token_versions for turn in turns] == [[4, 4, 6], [6, 6], [4, 4]]
    assert turns[0].versions == (4, 6) and turns[2].spans == []
    assert without_tokens(spanning) == {"policy_version_first": 4, "policy_version_last": 6}


def test_a_rollout_knows_its_versions_with_and_without_token_ids(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.model = Versioned(asked)
    asyncio.run(bench.collect([row("a")]))
    [line], [rollout] = bench.lines(), list(rk.load(tmp_path / "rollouts.jsonl"))
    assert (line["rollout"]["version_first"], line["rollout"]["version_last"]) == (3, 4)
    assert rollout.versions == (3, 4)
    assert line["response"]["output"][-1]["policy_version_last"] == 4


def test_a_model_without_versions_names_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    asyncio.run(bench.collect([row("a")]))
    [line], [rollout] = bench.lines(), list(rk.load(tmp_path / "rollouts.jsonl"))
    assert rollout.versions is None and "version_first" not in line["rollout"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", b'{"input": [{"role": "user", "content": "a"}]}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    ],
)
def test_replies_name_the_version_that_wrote_them(path: str, body: bytes) -> None:
    async def main() -> None:
        model, client, sock = Versioned(asked), HttpClient(), bound_socket("127.0.0.1", 0)
        async with model.serving(sock):
            url = url_of(sock)
            first = await client.get(f"{url}/weight_version")
            assert (first.raw, first.headers.get("x-policy-version")) == (b'{"version":3}', "3")
            reply = await client.post(f"{url}{path}", body)
            assert reply.headers.get("x-policy-version") == "4" and model.policy_version == 9
            await client.close()
        model, sock = ScriptedModel(asked), bound_socket("127.0.0.1", 0)
        async with model.serving(sock):
            client = HttpClient()
            reply = await client.get(f"{url_of(sock)}/weight_version")
            assert reply.raw == b'{"version":null}' and not reply.headers.get("x-policy-version")
            await client.close()

    asyncio.run(main())
