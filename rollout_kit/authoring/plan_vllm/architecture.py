"""Read from a model's `config.json` what determines its memory: parameters, layers, heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}

STATE_LAYERS = frozenset({"linear_attention", "mamba", "conv", "recurrent"})
"""Kinds of layers that keep a state of fixed size per sequence instead of keys and values."""


@dataclass(frozen=True, slots=True)
class Architecture:
    num_layers: int
    """Layers that keep keys and values of all tokens."""
    num_window_layers: int
    """Layers that keep keys and values of the last `window` tokens."""
    window: int
    num_state_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent_dim: int
    """With multi-head latent attention: values that a layer keeps per token; otherwise 0."""
    max_len: int
    dtype: str
    quantization: str
    """Quantization of the checkpoint; empty for none."""


def read(config: Mapping[str, Any]) -> Architecture:
    """Read the text part of a `config.json`; raise ConfigError if it is not a language model."""
    text = get_text_part(config)
    try:
        heads = text["num_attention_heads"]
        num_layers = text["num_hidden_layers"]
        head_dim = text.get("head_dim") or text["hidden_size"] // heads
        max_len = text["max_position_embeddings"]
    except KeyError as missing:
        raise _make_error(missing) from None
    kinds = _list_kinds(text, num_layers)
    latent = text.get("kv_lora_rank")
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"
    return Architecture(
        num_layers=kinds.count("full"),
        num_window_layers=kinds.count("window"),
        window=text.get("sliding_window") or 0,
        num_state_layers=kinds.count("state"),
        num_heads=heads,
        num_kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        latent_dim=latent + text["qk_rope_head_dim"] if latent else 0,
        max_len=max_len,
        dtype=dtype,
        quantization=str(quantization.get("quant_method", "")),
    )


def _make_error(missing: KeyError) -> ConfigError:
    return ConfigError(f"config.json has no {missing}: not a supported language model")


def get_text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the language model, which multimodal models nest."""
    return config.get("text_config") or config


def _list_kinds(text: Mapping[str, Any], num_layers: int) -> list[str]:
    """Return `full`, `window` or `state` for each layer."""
    if listed := text.get("layer_types"):
        of = {"sliding_attention": "window", "chunked_attention": "window"}
        return ["state" if kind in STATE_LAYERS else of.get(kind, "full") for kind in listed]
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full"] * num_layers
    every = text.get("sliding_window_pattern")  # Gemma: every n-th layer is full
    return ["full" if every and (n + 1) % every == 0 else "window" for n in range(num_layers)]


def count_params(config: Mapping[str, Any]) -> int:
    """Count the parameters of Llama, Mistral, Qwen and DeepSeek models, dense or with experts.

    Exact for the models in `known.json`. Raise ConfigError if a setting is missing.
    """
    text = get_text_part(config)
    try:
        hidden, layers = text["hidden_size"], text["num_hidden_layers"]
        embedding = text["vocab_size"] * hidden
        tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        dense = _get_num_dense_layers(text, layers)
        per_layer = _count_attention(text) + 2 * hidden
        mlp = dense * 3 * hidden * text.get("intermediate_size", 0)
        experts = (layers - dense) * _count_experts(text)
    except KeyError as missing:
        raise _make_error(missing) from None
    return embedding * (1 if tied else 2) + layers * per_layer + mlp + experts + hidden


def _count_attention(text: Mapping[str, Any]) -> int:
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    if rank := text.get("kv_lora_rank"):
        rope, nope, value = (
            text[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        read = hidden * (rank + rope) + rank + rank * heads * (nope + value)
        asked = text.get("q_lora_rank")
        wide = heads * (nope + rope)
        query = hidden * asked + asked + asked * wide if asked else hidden * wide
        return read + query + heads * value * hidden
    head = text.get("head_dim") or hidden // heads
    kv = (text.get("num_key_value_heads") or heads) * head
    kind = text.get("model_type", "")
    bias = heads * head + 2 * kv if kind in ("qwen2", "qwen2_moe") else 0
    norms = 2 * head if kind in ("qwen3", "qwen3_moe") else 0
    return 2 * hidden * heads * head + 2 * hidden * kv + bias + norms


def _get_num_experts(text: Mapping[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((text[name] for name in names if text.get(name)), 0)


def _get_num_dense_layers(text: Mapping[str, Any], layers: int) -> int:
    if not _get_num_experts(text):
        return layers
    return text.get("first_k_dense_replace", 0)


def _count_experts(text: Mapping[str, Any]) -> int:
    """Count the parameters of a layer's router and experts, including shared ones."""
    hidden, number = text["hidden_size"], _get_num_experts(text)
    wide = text.get("moe_intermediate_size") or text["intermediate_size"]
    shared = text.get("n_shared_experts", 0) or 0
    corrections = number if text.get("topk_method") == "noaux_tc" else 0
    return hidden * number + corrections + 3 * hidden * wide * (number + shared)
