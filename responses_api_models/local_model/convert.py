"""Convert a Qwen3 folder of Hugging Face to a CTranslate2 model directory in float32.

It needs only numpy and ctranslate2, not torch or transformers. Other architectures, RoPE scaling,
sliding windows, and weights in several files raise ConfigError.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

from rollout_kit.errors import ConfigError
from rollout_kit.serving.weights import Tensor, read_header

from .checkpoint import read_config, required
from .lora import FILES, add_adapter

Weights = Mapping[str, np.ndarray]

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def convert(checkpoint: Path, output: Path, adapter: Path | None = None) -> None:
    config = read_config(checkpoint)
    _check_supported(config, checkpoint)
    weights = read_safetensors(required(checkpoint, "model.safetensors"))
    if adapter is not None:
        weights = add_adapter(weights, adapter, read_safetensors(adapter / FILES[1]))
    vocabulary = _vocabulary(required(checkpoint, "tokenizer.json"), config["vocab_size"])
    spec = _specification(config)
    try:
        _fill(spec.decoder, weights, tied=config.get("tie_word_embeddings", False))
    except KeyError as error:
        raise ConfigError(f"{checkpoint}/model.safetensors has no tensor {error}") from None
    spec.register_vocabulary(vocabulary)
    eos = config["eos_token_id"]
    spec.config.eos_token = vocabulary[eos[0] if isinstance(eos, list) else eos]
    spec.config.bos_token = spec.config.eos_token
    spec.config.unk_token = ""
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize(quantization="float32")
    spec.save(str(output))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of the file as float32."""
    try:
        header = read_header(path)
    except ValueError:
        raise ConfigError(
            f"{path} is not safetensors; a Git LFS pointer without its file?"
        ) from None
    with path.open("rb") as file:
        file.seek(header.begin)
        data = file.read()
    return {name: _read_values(name, each, data, path) for name, each in header.tensors.items()}


def _read_values(name: str, tensor: Tensor, data: bytes, path: Path) -> np.ndarray:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ConfigError(f"{path}: {name} is {tensor.dtype}; bf16, f16 and f32 can be read")
    number = (tensor.end - tensor.start) // dtype.itemsize
    values = np.frombuffer(data, dtype, number, tensor.start)
    if tensor.dtype == "BF16":  # a bfloat16 is the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
    return values.astype(np.float32).reshape(tensor.shape)


def _specification(config: Mapping[str, Any]) -> transformer_spec.TransformerDecoderModelSpec:
    num_heads = config["num_attention_heads"]
    num_heads_kv = config.get("num_key_value_heads", num_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    return transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        num_heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=head_dim,
        rotary_interleave=False,
        rotary_base=_rope(config).get("rope_theta") or config.get("rope_theta", 1_000_000),
        num_heads_kv=None if num_heads_kv == num_heads else num_heads_kv,
        head_dim=head_dim,
        qk_norm=True,
    )


def _fill(
    decoder: transformer_spec.TransformerDecoderSpec, weights: Weights, *, tied: bool
) -> None:
    embeddings = weights["model.embed_tokens.weight"]
    decoder.scale_embeddings = False
    decoder.embeddings.weight = embeddings
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    decoder.projection.weight = embeddings if tied else weights["lm_head.weight"]
    for index, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{index}"
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = weights[f"{prefix}.input_layernorm.weight"]
        attention.q_norm.gamma = weights[f"{prefix}.self_attn.q_norm.weight"]
        attention.k_norm.gamma = weights[f"{prefix}.self_attn.k_norm.weight"]
        attention.linear[0].weight = np.concatenate(
            [weights[f"{prefix}.self_attn.{part}_proj.weight"] for part in "qkv"]
        )
        attention.linear[1].weight = weights[f"{prefix}.self_attn.o_proj.weight"]
        ffn.layer_norm.gamma = weights[f"{prefix}.post_attention_layernorm.weight"]
        ffn.linear_0.weight = weights[f"{prefix}.mlp.gate_proj.weight"]
        ffn.linear_0_noact.weight = weights[f"{prefix}.mlp.up_proj.weight"]
        ffn.linear_1.weight = weights[f"{prefix}.mlp.down_proj.weight"]


def _vocabulary(tokenizer: Path, size: int) -> list[str]:
    """Tokens by id, with placeholders for further rows of the embedding matrix."""
    content = json.loads(tokenizer.read_text("utf-8"))
    tokens = {number: token for token, number in content["model"]["vocab"].items()}
    tokens |= {added["id"]: added["content"] for added in content["added_tokens"]}
    return [tokens.get(number, f"<extra_id_{number}>") for number in range(size)]


def _check_supported(config: Mapping[str, Any], checkpoint: Path) -> None:
    problems = {
        "model_type is not qwen3": config.get("model_type") != "qwen3",
        "RoPE scaling": (_rope(config).get("rope_type") or _rope(config).get("type") or "default")
        != "default",
        "a sliding window": config.get("use_sliding_window", False),
        "attention biases": config.get("attention_bias", False),
        "an activation other than silu": config.get("hidden_act", "silu") != "silu",
    }
    found = [name for name, is_there in problems.items() if is_there]
    if found:
        raise ConfigError(f"{checkpoint}/config.json: cannot convert {', '.join(found)}")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}
