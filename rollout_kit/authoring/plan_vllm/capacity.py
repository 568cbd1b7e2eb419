"""Compute the capacity of a layout of GPUs, in bytes and tokens. Pure functions of numbers."""

from dataclasses import dataclass

from .architecture import DTYPE_BYTES, Architecture

UTILIZATION = 0.92
"""vLLM's own `gpu_memory_utilization`, since 0.21."""

OVERHEAD_BYTES = 3_000_000_000
"""Memory of each GPU besides weights and KV cache: activations, CUDA graphs, NCCL, CUDA context.
An assumption: vLLM measures it at start, and it is 2 to 4 GB for most models."""

QUANTIZED_BYTES = {"fp8": 1.0, "int4": 0.56}
"""Bytes per parameter, including scales."""

BLOCK = 16
"""Tokens per block of vLLM's KV cache."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Replicas, and GPUs per replica, with their capacity."""

    tensor_parallel_size: int
    num_replicas: int
    weight_bytes: int
    """Per GPU."""
    kv_bytes_per_token: int
    """Per GPU, for a token that all layers keep."""
    free_bytes: int
    """Memory for the KV cache per GPU; negative if the weights do not fit."""
    num_tokens: int
    """Tokens in the cache of one replica, with sequences of `max_model_len`."""
    num_sequences: int
    """Sequences of the expected length, over all replicas."""
    num_longest: int
    """Sequences of `max_model_len`, over all replicas."""


def compute_weight_bytes(
    num_params: int, stored: int, arch: Architecture, dtype: str, quant: str
) -> int:
    """Bytes of one copy in memory. `quant` applies to checkpoints that are not quantized."""
    if arch.quantization:
        return stored
    if quant:
        return int(num_params * QUANTIZED_BYTES[quant])
    return num_params * DTYPE_BYTES[arch.dtype if dtype == "auto" else dtype]


def compute_kv_bytes(arch: Architecture, tensor_parallel_size: int, cache_bytes: int) -> int:
    """Bytes per token, layer and GPU. Heads are distributed, and repeated if there are fewer heads
    than GPUs; the values of latent attention are on every GPU."""
    if arch.latent_dim:
        return arch.latent_dim * cache_bytes
    heads = max(1, arch.num_kv_heads // tensor_parallel_size)
    return 2 * heads * arch.head_dim * cache_bytes


def compute_sequence_bytes(arch: Architecture, length: int, per_layer: int) -> int:
    """Bytes per sequence and GPU, in whole blocks."""
    whole = -(-length // BLOCK) * BLOCK
    windowed = min(whole, -(-arch.window // BLOCK) * BLOCK + BLOCK) if arch.window else whole
    return per_layer * (arch.num_layers * whole + arch.num_window_layers * windowed)


def compute_layout(
    arch: Architecture,
    *,
    weights: int,
    memory: int,
    sizes: tuple[int, int],
    lengths: tuple[int, int],
    cache_bytes: int,
    utilization: float = UTILIZATION,
) -> Layout:
    """Compute a layout. `sizes`: tensor-parallel size, replicas. `lengths`: expected, longest."""
    (tp, replicas), (expected, longest) = sizes, lengths
    per_layer = compute_kv_bytes(arch, tp, cache_bytes)
    share = -(-weights // tp)
    free = int(utilization * memory) - share - OVERHEAD_BYTES
    room = max(free, 0)
    num_longest = room // max(1, compute_sequence_bytes(arch, longest, per_layer))
    return Layout(
        tensor_parallel_size=tp,
        num_replicas=replicas,
        weight_bytes=share,
        kv_bytes_per_token=per_layer * (arch.num_layers + arch.num_window_layers),
        free_bytes=free,
        num_tokens=int(room * longest / max(1, compute_sequence_bytes(arch, longest, per_layer))),
        num_sequences=replicas
        * (room // max(1, compute_sequence_bytes(arch, expected, per_layer))),
        num_longest=replicas * num_longest,
    )


def list_tensor_parallel_sizes(arch: Architecture, num_gpus: int) -> list[int]:
    """Sizes that divide the heads and the GPUs, smallest first."""
    return [
        size
        for size in range(1, num_gpus + 1)
        if num_gpus % size == 0
        and arch.num_heads % size == 0
        and (arch.num_kv_heads % size == 0 or size % arch.num_kv_heads == 0)
    ]
