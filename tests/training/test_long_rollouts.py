"""Rollouts of 40 turns during which the weights change: versions, masks and importance ratios are
those of the sampler's own notes. What is older than the bound is dropped, kept or left out."""

import asyncio
import math
from itertools import groupby
from typing import Any

import pytest
from support import Bench, Echo, asked, row
from token_model import TokenModel

from rollout_kit import load
from rollout_kit.api.testing import making
from rollout_kit.responses import function_call_item, message_item
from rollout_kit.rl import BufferPolicy, MemoryBuffer, read_group
from rollout_kit.rl.buffer.group import BufferedGroup
from rollout_kit.rl.rows import compute_ratios
from rollout_kit.serving.resources_server import tool
from rollout_kit.trajectory import LOG_PROBS, stamp_tokens

TURNS, ROLLOUTS = 40, 200

CALLS_OF_A_VERSION = 500


def score(token: int, place: int, version: int) -> float:
    """The log-prob of a token at a place of its generation."""
    return -0.1 - (token * 7 + place * 3 + version * 13) % 50 / 100


class Learning(TokenModel):
    """Its weights change after so many calls, and within every third call at which that is."""

    def __init__(self) -> None:
        super().__init__(self.reply)
        self.notes: dict[str, list[tuple[list[int], list[int], list[int]]]] = {}
        self.number = 0

    def reply(self, params: Any) -> list[Any]:
        question = params["input"][0]["content"]
        at = len(self.notes.get(question, ()))
        if at + 1 == TURNS:
            return [message_item(question)]
        return [function_call_item("step", f'{{"at": {at}}}', f"call_{at}")]

    async def responses(self, params: Any) -> Any:
        response = await super().responses(params)
        prompt, generated = self.log[-1]
        self.number += 1
        before, is_last = divmod(self.number, CALLS_OF_A_VERSION)
        changes = is_last % 50 == 0
        half = len(generated) // 2
        versions = [before + (changes and place >= half) for place in range(len(generated))]
        last = response["output"][-1]
        pairs = zip(generated, versions, strict=True)
        last[LOG_PROBS] = [score(token, at, version) for at, (token, version) in enumerate(pairs)]
        stamp_tokens(response["output"], versions)
        note = (prompt, generated, versions)
        self.notes.setdefault(params["input"][0]["content"], []).append(note)
        return response


class Stepping(Echo):
    """Has a tool that says how far the rollout is."""

    @tool
    async def step(self, at: int) -> int:
        """Go one step on."""
        return at + 1


def expect_row(notes: list[tuple[list[int], list[int], list[int]]]) -> tuple[list[Any], ...]:
    """Tokens, mask, log-probs and versions of a rollout, from the sampler's notes alone."""
    tokens: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    versions: list[int] = []
    for prompt, generated, sampled in notes:
        added = prompt[len(tokens) :]
        assert prompt[: len(tokens)] == tokens
        tokens += [*added, *generated]
        mask += [*[0] * len(added), *[1] * len(generated)]
        scores = [score(t, p, v) for p, (t, v) in enumerate(zip(generated, sampled, strict=True))]
        log_probs += [*[0.0] * len(added), *scores]
        versions += [*[-1] * len(added), *sampled]
    return tokens, mask, log_probs, versions


def test_versions_masks_and_ratios_are_those_of_the_sampler(bench: Bench) -> None:
    model = bench.model = Learning()
    bench.verifier, bench.agent_settings = making(Stepping), {"max_steps": TURNS + 1}
    rows = [row(f"task {number}") for number in range(ROLLOUTS)]
    assert asyncio.run(bench.collect(rows, num_samples_in_parallel=32)) == 0
    rollouts, changing = list(load(bench.folder / "rollouts.jsonl")), 0
    assert len(rollouts) == ROLLOUTS and sum(map(len, model.notes.values())) == ROLLOUTS * TURNS
    newest = model.number // CALLS_OF_A_VERSION
    for rollout in rollouts:
        notes = model.notes[asked(rollout.line["responses_create_params"])]
        tokens, mask, log_probs, versions = expect_row(notes)
        [found] = read_group([rollout]).rows
        assert (found.token_ids, found.mask, found.versions) == (tokens, mask, versions)
        assert found.log_probs == pytest.approx(log_probs)
        now = [each - 0.01 * at for at, each in enumerate(log_probs)]
        places = [at for at, is_sampled in enumerate(mask) if is_sampled]
        by_hand: dict[int, list[float]] = {}
        for at in places:
            by_hand.setdefault(versions[at], []).append(math.exp(-0.01 * at))
        ratios = compute_ratios(found, now)
        assert ratios.keys() == by_hand.keys()
        assert all(ratios[each] == pytest.approx(by_hand[each]) for each in by_hand)
        fresh = read_group([rollout], oldest=newest - 2).rows
        kept = [int(m and v >= newest - 2) for m, v in zip(mask, versions, strict=True)]
        assert [each.mask for each in fresh] == ([kept] if any(kept) else [])
        sampled = [version for at, version in enumerate(versions) if mask[at]]
        changing += len(list(groupby(sampled))) > 1
    assert changing > ROLLOUTS / 2  # the weights change in most of them


def put_and_get(policy: BufferPolicy) -> tuple[str, list[str], dict[str, int]]:
    """Put a group that began 3 versions ago and ended with the present one, and one that ended 3
    versions ago."""

    async def main() -> tuple[str, list[str], dict[str, int]]:
        async with MemoryBuffer(policy) as buffer:
            await buffer.set_version(0)
            await buffer.set_version(5)
            said = await buffer.put(BufferedGroup("long", [], [], 2, 5))
            await buffer.put(BufferedGroup("old", [], [], 2, 2))
            await buffer.put(BufferedGroup("new", [], [], 5, 5))
            batch = await buffer.get(2, at_least=1)
            assert batch is not None
            stats = await buffer.stats()
            return said, [group.key for group in batch.groups], stats["dropped"]

    return asyncio.run(main())


def test_what_is_longer_than_the_bound_is_dropped_kept_or_cut() -> None:
    policy = BufferPolicy(batch=4, staleness=1)
    assert put_and_get(policy) == ("stale", ["new"], {"stale": 2})
    assert policy.oldest_token(5) is None
    policy = BufferPolicy(batch=4, staleness=1, long_rollouts="keep")
    assert put_and_get(policy) == ("ok", ["long", "new"], {"stale": 1})
    assert policy.oldest_token(5) is None
    policy = BufferPolicy(batch=4, staleness=1, long_rollouts="segments")
    assert put_and_get(policy) == ("ok", ["long", "new"], {"stale": 1})
    assert policy.oldest_token(5) == 4
