"""Plan a model on GPUs: all layouts, the recommended one, and alternatives if none fits."""

from dataclasses import dataclass

from ...config.keys import PlanVllmConfig
from . import architecture, capacity, checkpoint, gpus
from .architecture import Architecture
from .capacity import Layout
from .checkpoint import Checkpoint
from .gpus import Gpus

ENOUGH = 64
"""Sequences that a replica should hold; with fewer, decoding does not use the GPU fully."""

COMFORT = 0.8
"""Average share of the KV cache to use; lengths vary, and vLLM restarts evicted sequences."""

LARGE_BYTES, HUGE_BYTES = 70 << 30, 160 << 30
"""GPU memory from which vLLM uses larger steps and more concurrent sequences."""

DEFAULT_LENGTH = 8192
"""Default length of the longest sequence; most conversations of agents are shorter."""

CARDS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs to try if the given ones are too few."""


@dataclass(frozen=True, slots=True)
class Plan:
    asked: PlanVllmConfig
    checkpoint: Checkpoint
    arch: Architecture
    gpus: Gpus
    weight_bytes: int
    """Of one replica."""
    max_model_len: int
    expected: int
    """Tokens of a sequence, prompt and response together."""
    layouts: list[Layout]
    chosen: Layout | None
    ways: list[str]
    """Alternatives, if nothing fits."""

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
    """Make a plan; raise ConfigError if the model or the GPUs are unknown."""
    found = checkpoint.find(asked.model_name)
    arch = architecture.read(found.config)
    cards = gpus.read(asked.gpus)
    longest = asked.max_model_len or min(arch.max_len, DEFAULT_LENGTH)
    expected = min(asked.sequence_tokens or max(1, longest // 2), longest)
    weights = _compute_weights(asked, found, arch, asked.quantization or "")
    lengths = (expected, longest)
    layouts = _compute_layouts(asked, arch, cards, weights, lengths)
    chosen = _choose(layouts)
    ways = [] if chosen else _find_alternatives(asked, found, arch, cards, lengths)
    return Plan(asked, found, arch, cards, weights, longest, expected, layouts, chosen, ways)


def _compute_weights(
    asked: PlanVllmConfig, found: Checkpoint, arch: Architecture, quant: str
) -> int:
    stored = found.stored_bytes
    if arch.quantization and not found.is_exact:
        stored = int(found.num_params * capacity.QUANTIZED_BYTES.get(arch.quantization, 0.56))
    return capacity.compute_weight_bytes(found.num_params, stored, arch, asked.dtype, quant)


def _compute_layouts(
    asked: PlanVllmConfig,
    arch: Architecture,
    cards: Gpus,
    weights: int,
    lengths: tuple[int, int],
) -> list[Layout]:
    return [
        capacity.compute_layout(
            arch,
            weights=weights,
            memory=cards.memory,
            sizes=(size, cards.number // size),
            lengths=lengths,
            cache_bytes=1 if asked.kv_cache_dtype == "fp8" else 2,
            utilization=asked.gpu_memory_utilization,
        )
        for size in capacity.list_tensor_parallel_sizes(arch, cards.number)
    ]


def _choose(layouts: list[Layout]) -> Layout | None:
    """Choose the smallest split that uses its GPUs fully, else the one with most sequences."""
    fit = [each for each in layouts if each.num_longest]
    busy = [each for each in fit if each.num_sequences >= ENOUGH * each.num_replicas]
    return busy[0] if busy else max(fit, key=lambda each: each.num_sequences, default=None)


def _find_alternatives(
    asked: PlanVllmConfig,
    found: Checkpoint,
    arch: Architecture,
    cards: Gpus,
    lengths: tuple[int, int],
) -> list[str]:
    """List alternatives: more GPUs, quantization, or a shorter context."""
    own = arch.quantization or asked.quantization or ""
    found_ways = []
    for quant in (own,) if own else ("", *capacity.QUANTIZED_BYTES):
        weights = _compute_weights(asked, found, arch, quant)
        for number in CARDS:
            more = Gpus(number, cards.label, cards.memory)
            if chosen := _choose(_compute_layouts(asked, arch, more, weights, lengths)):
                what = quant or (arch.dtype if asked.dtype == "auto" else asked.dtype)
                found_ways.append(
                    f"{number} × {cards.label} in {what}: weights {weights / 1e9:.0f} GB, room for"
                    f" {chosen.num_sequences:,} sequences of {lengths[0]:,} tokens"
                )
                break
    present = _compute_layouts(
        asked, arch, cards, _compute_weights(asked, found, arch, own), lengths
    )
    room = max((each.num_tokens for each in present), default=0) // 256 * 256
    return [*found_ways, f"max_model_len of at most {room:,} on these GPUs"] if room else found_ways
