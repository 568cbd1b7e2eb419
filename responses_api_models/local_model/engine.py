"""Sample token ids, with the log-probs of the distribution that they were sampled from.

CTranslate2 runs the network; this module samples, because CTranslate2 (4.8) reports log-probs
without temperature and has no seed per request. Each request runs alone: results of a batch depend
on its shape, and batches of unequal rows were not faster. CTranslate2 decodes greedily and passes
the logits to a callback. While the sampled token is the greedy one, it goes on with its cache; else
decoding restarts after the prompt with all tokens sampled so far, which is exact. Prompts are
cached for such restarts and for repeats of a task.
"""

import asyncio
import json
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any, Literal

import ctranslate2
import numpy as np

from rollout_kit.errors import ModelError
from rollout_kit.rl.partial import PartialTurn

from .cache import converted
from .checkpoint import end_ids, read_config
from .sampling import Sampling

MIN_CACHE_BYTES = 32 * 2**20
"""Memory for cached prompts, if the model needs less: then a reload costs little per prompt."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Token ids with the end-of-turn token if it was reached, and one log-prob for each."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


class Engine:
    """A loaded checkpoint; `num_threads` requests run at a time, others wait in order. Its
    conversion stays in the cache if it `is_kept`, else until the engine closes."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        num_threads: int,
        adapter: Path | None = None,
        is_kept: bool = True,
    ) -> None:
        config = read_config(checkpoint)
        self.context_length: int = config["max_position_embeddings"]
        self.end_ids = end_ids(checkpoint, config)
        self._resources = ExitStack()
        self._model = self._resources.enter_context(converted(checkpoint, adapter, is_kept=is_kept))
        self._vocabulary = json.loads((self._model / "vocabulary.json").read_text("utf-8"))
        model_bytes = (self._model / "model.bin").stat().st_size
        self._cache_room = max(model_bytes, MIN_CACHE_BYTES) // cached_bytes(config)
        self._num_cached = 0
        self._swapping = Lock()
        self._num_threads = num_threads
        self._generator: ctranslate2.Generator | None = self._load()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="local_model")
        self._closing = Event()
        self._num_unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def vocabulary_size(self) -> int:
        return len(self._vocabulary)

    @property
    def num_running(self) -> int:
        return min(self._num_unfinished, self._num_threads)

    @property
    def num_waiting(self) -> int:
        return self._num_unfinished - self.num_running

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        partial: PartialTurn | None = None,
        version: int | None = None,
    ) -> Generated:
        """Sample an answer. Without room for one, no tokens and "length". ModelError if closed.

        The answer begins with the tokens of `partial`, which receives those that follow, also if
        the request is cancelled. They are of this `version`.
        """
        self._check_open()
        room = self.context_length - len(prompt_token_ids)
        if room < 1:
            return Generated((), (), "length")
        abandoned = Event()
        limit = min(sampling.max_tokens, room)
        turn = Turn(sampling, limit, self.end_ids, (abandoned, self._closing), partial)
        self._num_unfinished += 1
        self._idle.clear()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._generate, prompt_token_ids, turn, abandoned
            )
        finally:
            abandoned.set()
            if partial is not None:
                added = turn.sampled[len(partial.token_ids) :]
                partial.add(added, [version] * len(added))
            self._end_one()

    async def score(self, token_ids: Sequence[int], temperature: float) -> list[float]:
        """The log-prob of each token after the first, in the distribution at this temperature; at 0
        that of the model itself, as for sampled tokens."""
        self._check_open()
        if len(token_ids) > self.context_length:
            what = f"{len(token_ids)} tokens exceed the context of {self.context_length}"
            raise ModelError(what, status=400, retryable=False)
        self._num_unfinished += 1
        self._idle.clear()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._score, token_ids, temperature
            )
        finally:
            self._end_one()

    def _score(self, token_ids: Sequence[int], temperature: float) -> list[float]:
        with self._swapping:
            generator = self._generator = self._generator or self._load()
        tokens = [[self._vocabulary[token_id] for token_id in token_ids]]
        logits = np.asarray(generator.forward_batch(tokens))[0, :-1].astype(np.float64)
        scores = logits / (temperature or 1.0)
        scores -= scores.max(-1, keepdims=True)
        chosen = scores[np.arange(len(scores)), token_ids[1:]]
        return (chosen - np.log(np.exp(scores).sum(-1))).tolist()

    def _end_one(self) -> None:
        self._num_unfinished -= 1
        if not self._num_unfinished:
            self._idle.set()

    async def retire(self) -> None:
        """Close once all requests have ended."""
        await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Let all requests fail with a ModelError; return when the threads have ended."""
        self._closing.set()
        await asyncio.to_thread(self._pool.shutdown)
        self._generator = None
        self._resources.close()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ModelError("the local model is stopping", status=503)

    def _generate(
        self, prompt_token_ids: Sequence[int], turn: "Turn", abandoned: Event
    ) -> Generated:
        self._check_open()
        prompt = [self._vocabulary[token_id] for token_id in prompt_token_ids]
        generator = self._generator_for(len(prompt))
        while not turn.is_finished and not abandoned.is_set():
            self._check_open()
            generator.generate_batch(
                [prompt[-1:] + [self._vocabulary[token_id] for token_id, _ in turn.sampled]],
                static_prompt=prompt[:-1],
                max_length=turn.limit - len(turn.sampled),
                end_token=self.end_ids,
                include_prompt_in_result=False,
                return_logits_vocab=True,
                callback=turn.take,
            )
        reason = "stop" if turn.is_ended else "length"
        token_ids = tuple(token_id for token_id, _ in turn.sampled)
        return Generated(token_ids, tuple(log_prob for _, log_prob in turn.sampled), reason)

    def _generator_for(self, num_tokens: int) -> ctranslate2.Generator:
        """The generator; a new one if the old one may have cached too many prompts.

        CTranslate2 releases a cached prompt only with its generator. Requests that use the old
        generator finish there.
        """
        with self._swapping:
            self._num_cached += num_tokens
            if self._generator is None or self._num_cached > self._cache_room:
                self._generator = self._load()
                self._num_cached = num_tokens
            return self._generator

    def _load(self) -> ctranslate2.Generator:
        return ctranslate2.Generator(
            str(self._model),
            compute_type="float32",
            inter_threads=self._num_threads,
            intra_threads=1,
        )


class Turn:
    """The tokens sampled so far for one request.

    It must not refer to the engine. CTranslate2 releases a callback on a thread of its own; if that
    were the last reference to the generator, the thread would join itself and the process abort.
    """

    def __init__(
        self,
        sampling: Sampling,
        limit: int,
        end_ids: Sequence[int],
        stops: Sequence[Event],
        partial: PartialTurn | None = None,
    ) -> None:
        kept = partial or PartialTurn()
        self.sampled = list(zip(kept.token_ids, kept.log_probs, strict=True))
        """Token ids with their log-probs."""
        self.limit = limit
        self._sampling = sampling
        self._draws = random.Random(sampling.seed)
        for _ in self.sampled if sampling.temperature else ():
            self._draws.random()
        self._end_ids = end_ids
        self._stops = stops

    @property
    def is_ended(self) -> bool:
        return bool(self.sampled) and self.sampled[-1][0] in self._end_ids

    @property
    def is_finished(self) -> bool:
        return self.is_ended or len(self.sampled) >= self.limit

    def take(self, step: Any) -> bool:
        """Sample the next token; return True to stop CTranslate2 if it chose another one."""
        token_id, log_prob = choose(np.asarray(step.logits)[0], self._sampling, self._draws)
        self.sampled.append((token_id, log_prob))
        is_other = token_id != step.token_id
        return is_other or self.is_finished or any(stop.is_set() for stop in self._stops)


def cached_bytes(config: Mapping[str, Any]) -> int:
    """Keys and values of one token in all layers, float32."""
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    num_heads_kv = config.get("num_key_value_heads", num_heads)
    return 2 * 4 * config["num_hidden_layers"] * num_heads_kv * head_dim


def choose(logits: np.ndarray, sampling: Sampling, draws: random.Random) -> tuple[int, float]:
    """One token id and its log-prob in the distribution that it was sampled from.

    The distribution has the temperature, top-k and top-p applied and is normalised. For greedy
    choice, the log-prob is the model's own at temperature 1.
    """
    scores = logits.astype(np.float64)
    if sampling.temperature == 0:
        token_id = int(scores.argmax())
        return token_id, float(_log_softmax(scores)[token_id])
    log_probs = _log_softmax(scores / sampling.temperature)
    if sampling.top_k or sampling.top_p < 1:
        log_probs = _log_softmax(_cut(log_probs, sampling))
    cumulative = np.exp(log_probs).cumsum()
    token_id = int(cumulative.searchsorted(draws.random() * cumulative[-1], side="right"))
    return token_id, float(log_probs[token_id])


def _cut(log_probs: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Set all to -inf except the `top_k` likeliest and, of these, the fewest with `top_p`."""
    order = (-log_probs).argsort(kind="stable")[: sampling.top_k or None]
    probs = np.exp(log_probs[order])
    mass_before = probs.cumsum() - probs
    kept = order[mass_before < sampling.top_p * probs.sum()]
    cut = np.full_like(log_probs, -math.inf)
    cut[kept] = log_probs[kept]
    return cut


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - math.log(np.exp(shifted).sum())
