"""Format a plan: a table, the result, and YAML to copy."""

from ...types import JsonObject
from .plan import Plan

GB = 1e9


def format_plan(plan: Plan) -> list[str]:
    found, arch, cards = plan.checkpoint, plan.arch, plan.gpus
    how = "exactly" if found.is_exact else "about"
    lines = [
        f"{found.name}: {_format_count(found.num_params)} parameters, from {found.source}",
        f"weights      {how} {_format_gb(plan.weight_bytes)} in {_get_format(plan)}",
        f"KV cache     {_describe_cache(plan)}",
        f"GPUs         {cards.number} × {cards.label} ({_format_gb(cards.memory)} each), of which"
        f" {plan.asked.gpu_memory_utilization:.0%} less 3 GB for activations etc.",
        f"sequences    {plan.expected:,} tokens expected, {plan.max_model_len:,} at most",
    ]
    if arch.num_state_layers:
        lines.append(
            f"             {arch.num_state_layers} layers keep a state, which is not counted"
        )
    lines += ["", *_format_table(plan), ""]
    if plan.chosen is None:
        ways = ["these would fit:", *(f"  {way}" for way in plan.ways)] if plan.ways else []
        return [*lines, f"it does not fit: {_describe_shortage(plan)}", *ways]
    if plan.asked.quantization == "int4":
        lines.append(
            "# model_name must be an int4 checkpoint (AWQ, GPTQ): vLLM does not create one"
        )
    return [*lines, *_format_yaml(build_settings(plan))]


def build_settings(plan: Plan) -> JsonObject:
    """Return the block of `vllm_model`, and the collector's parallelism."""
    assert plan.chosen
    asked, chosen = plan.asked, plan.chosen
    block: JsonObject = {
        "model_name": asked.model_name,
        "tensor_parallel_size": chosen.tensor_parallel_size,
        "num_replicas": chosen.num_replicas,
        "gpu_memory_utilization": asked.gpu_memory_utilization,
        "max_model_len": plan.max_model_len,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "dtype": asked.dtype,
    }
    if asked.quantization == "fp8":
        block["quantization"] = "fp8"
    if asked.kv_cache_dtype != "auto":
        block["kv_cache_dtype"] = asked.kv_cache_dtype
    return {"vllm_model": block, "num_samples_in_parallel": plan.num_samples_in_parallel}


def to_json(plan: Plan) -> JsonObject:
    """Convert a plan to JSON."""
    return {
        "model_name": plan.checkpoint.name,
        "num_params": plan.checkpoint.num_params,
        "weight_bytes": plan.weight_bytes,
        "weights_are_exact": plan.checkpoint.is_exact,
        "max_model_len": plan.max_model_len,
        "sequence_tokens": plan.expected,
        "fits": plan.chosen is not None,
        "layouts": [
            {name: getattr(each, name) for name in each.__slots__} for each in plan.layouts
        ],
        **({"settings": build_settings(plan)} if plan.chosen else {"would_fit": plan.ways}),
    }


def _format_count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e8 else f"{number / 1e6:.2f} million"


def _format_gb(number: float) -> str:
    return f"{number / GB:.1f} GB" if number < 100 * GB else f"{number / GB:.0f} GB"


def _get_format(plan: Plan) -> str:
    if plan.arch.quantization:
        return plan.arch.quantization
    if plan.asked.quantization:
        return plan.asked.quantization
    return plan.arch.dtype if plan.asked.dtype == "auto" else plan.asked.dtype


def _describe_cache(plan: Plan) -> str:
    arch, first = plan.arch, plan.layouts[0] if plan.layouts else None
    if first is None:
        return "–"
    numbers = (
        f"1 latent of {arch.latent_dim}"
        if arch.latent_dim
        else f"2 × {arch.num_kv_heads} heads of {arch.head_dim}"
    )
    window = f", {arch.num_window_layers} of them with a window of {arch.window:,} tokens"
    layers = arch.num_layers + arch.num_window_layers
    return (
        f"{first.kv_bytes_per_token:,} bytes per token: {layers} layers"
        f"{window if arch.num_window_layers else ''}, {numbers}"
    )


def _format_table(plan: Plan) -> list[str]:
    head = ("", "GPUs each", "replicas", "weights", "KV cache", "tokens", "sequences", "longest")
    rows: list[tuple[str, ...]] = [head]
    for each in plan.layouts:
        row = (
            "→" if each is plan.chosen else "",
            str(each.tensor_parallel_size),
            str(each.num_replicas),
            _format_gb(each.weight_bytes),
            _format_gb(each.free_bytes) if each.free_bytes > 0 else "none",
            f"{each.num_tokens:,}",
            f"{each.num_sequences:,}",
            f"{each.num_longest:,}",
        )
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _describe_shortage(plan: Plan) -> str:
    cards, arch = plan.gpus, plan.arch
    if not plan.layouts:
        return f"{arch.num_heads} heads cannot be distributed over {cards.number} GPUs"
    best = max(plan.layouts, key=lambda each: each.free_bytes)
    split = best.tensor_parallel_size
    of = f" on each of {split}" if split > 1 else ""
    may_take = plan.asked.gpu_memory_utilization * cards.memory
    if best.free_bytes <= 0 and best.weight_bytes < may_take:
        return (
            f"vLLM may use {_format_gb(may_take)} of a GPU's {_format_gb(cards.memory)};"
            f" {_format_gb(best.weight_bytes)} of weights{of} and 3 GB for activations etc."
            " leave nothing for the KV cache"
        )
    if best.free_bytes <= 0:
        each = f", {_format_gb(best.weight_bytes)}{of}," if split > 1 else ""
        return (
            f"the weights alone are {_format_gb(plan.weight_bytes)}{each} and vLLM may use"
            f" {_format_gb(may_take)} of a GPU's {_format_gb(cards.memory)}"
        )
    return (
        f"the weights leave {_format_gb(best.free_bytes)}{of} for the KV cache,"
        f" {best.num_tokens:,} tokens, but one sequence may have {plan.max_model_len:,}"
    )


def _format_yaml(block: JsonObject) -> list[str]:
    lines = []
    for name, value in block.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {key}: {inner}" for key, inner in value.items())]
        else:
            lines.append(f"{name}: {value}")
    return lines
