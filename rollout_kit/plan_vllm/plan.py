"""One model on so many GPUs: every layout, the one to take, and what would fit where none does."""

from dataclasses import dataclass

from ..config.keys.commands import PlanVllmConfig
from . import architecture, capacity, checkpoint, gpus
from .architecture import Architecture
from .capacity import Layout
from .checkpoint import Checkpoint
from .gpus import Gpus

ENOUGH = 64
"""Sequences that one replica should hold: fewer leave a GPU's arithmetic idle while it decodes."""

COMFORT = 0.8
"""Of the KV cache, on average: sequences differ in length, and vLLM starts over those it evicts."""

LARGE_BYTES, HUGE_BYTES = 70 << 30, 160 << 30
"""Memory from which vLLM takes larger steps, and more sequences at once."""

DEFAULT_LENGTH = 8192
"""Of the longest sequence, where none is given: what most agents' conversations keep to."""

CARDS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that are looked at where the given ones are too few."""


@dataclass(frozen=True, slots=True)
class Plan:
    asked: PlanVllmConfig
    checkpoint: Checkpoint
    arch: Architecture
    gpus: Gpus
    weight_bytes: int
    """Of one copy."""
    max_model_len: int
    expected: int
    """Tokens of a sequence, prompt and response together."""
    layouts: list[Layout]
    chosen: Layout | None
    ways: list[str]
    """What would fit, where nothing does."""

    @property
    def max_num_seqs(self) -> int:
        """vLLM's own default."""
        return 1024 if self._is_large else 256

    @property
    def max_num_batched_tokens(self) -> int:
        """vLLM's own default for a server."""
        if self.gpus.memory >= HUGE_BYTES:
            return 16_384
        return 8192 if self._is_large else 2048

    @property
    def _is_large(self) -> bool:
        return self.gpus.memory >= LARGE_BYTES and "A100" not in self.gpus.label

    @property
    def num_samples_in_parallel(self) -> int:
        assert self.chosen
        comfortable = int(COMFORT * self.chosen.num_sequences)
        return max(1, min(comfortable, self.max_num_seqs * self.chosen.num_replicas))


def plan(asked: PlanVllmConfig) -> Plan:
    """ConfigError where the model or the GPUs are not known."""
    found = checkpoint.find(asked.model_name)
    arch = architecture.read(found.config)
    cards = gpus.read(asked.gpus)
    longest = asked.max_model_len or min(arch.max_len, DEFAULT_LENGTH)
    expected = min(asked.sequence_tokens or max(1, longest // 2), longest)
    weights = _weights(asked, found, arch, asked.quantization or "")
    lengths = (expected, longest)
    layouts = _layouts(asked, arch, cards, weights, lengths)
    chosen = _chosen(layouts)
    ways = [] if chosen else _ways(asked, found, arch, cards, lengths)
    return Plan(asked, found, arch, cards, weights, longest, expected, layouts, chosen, ways)


def _weights(asked: PlanVllmConfig, found: Checkpoint, arch: Architecture, quant: str) -> int:
    stored = found.stored_bytes
    if arch.quantization and not found.is_exact:
        stored = int(found.num_params * capacity.QUANTIZED_BYTES.get(arch.quantization, 0.56))
    return capacity.weight_bytes(found.num_params, stored, arch, asked.dtype, quant)


def _layouts(
    asked: PlanVllmConfig,
    arch: Architecture,
    cards: Gpus,
    weights: int,
    lengths: tuple[int, int],
) -> list[Layout]:
    return [
        capacity.layout(
            arch,
            weights=weights,
            memory=cards.memory,
            sizes=(size, cards.number // size),
            lengths=lengths,
            cache_bytes=1 if asked.kv_cache_dtype == "fp8" else 2,
            utilization=asked.gpu_memory_utilization,
        )
        for size in capacity.tensor_parallel_sizes(arch, cards.number)
    ]


def _chosen(layouts: list[Layout]) -> Layout | None:
    """The least split that keeps its GPUs busy; else what holds most."""
    fit = [each for each in layouts if each.num_longest]
    busy = [each for each in fit if each.num_sequences >= ENOUGH * each.num_replicas]
    return busy[0] if busy else max(fit, key=lambda each: each.num_sequences, default=None)


def _ways(
    asked: PlanVllmConfig,
    found: Checkpoint,
    arch: Architecture,
    cards: Gpus,
    lengths: tuple[int, int],
) -> list[str]:
    """The smallest numbers of GPUs, as the weights are and quantized; a shorter context."""
    own = arch.quantization or asked.quantization or ""
    told = []
    for quant in (own,) if own else ("", *capacity.QUANTIZED_BYTES):
        weights = _weights(asked, found, arch, quant)
        for number in CARDS:
            more = Gpus(number, cards.label, cards.memory)
            if chosen := _chosen(_layouts(asked, arch, more, weights, lengths)):
                what = quant or (arch.dtype if asked.dtype == "auto" else asked.dtype)
                told.append(
                    f"{number} × {cards.label} in {what}: weights {weights / 1e9:.0f} GB, room for"
                    f" {chosen.num_sequences:,} sequences of {lengths[0]:,} tokens"
                )
                break
    present = _layouts(asked, arch, cards, _weights(asked, found, arch, own), lengths)
    room = max((each.num_tokens for each in present), default=0) // 256 * 256
    return [*told, f"max_model_len of at most {room:,} on these GPUs"] if room else told
