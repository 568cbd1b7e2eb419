"""The part of a merge that needs torch, PEFT and transformers."""

import importlib
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError, OutputError, how_to_install
from ...types import JsonObject
from .adapter import Adapter, known_settings

LIBRARIES = ("torch", "transformers", "peft")

NUM_TOKENS = 48
"""Tokens, spread over the vocabulary, that both models read in the comparison."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far log-probs lie apart, on average over the next token, at the worst place."""

    adapter: float
    """Base with adapter, against the base: what the adapter changes."""
    merged: float
    """Merged model, against base with adapter: what the merge adds."""


def import_libraries() -> tuple[Any, Any, Any]:
    try:
        return tuple(importlib.import_module(name) for name in LIBRARIES)  # type: ignore[return-value]
    except ImportError as error:
        raise ConfigError(
            f"ng_merge_lora needs {', '.join(LIBRARIES)} ({error}):"
            f" {how_to_install('rollout-kit[lora]')}"
        ) from None


def versions() -> dict[str, str]:
    return {each.__name__: each.__version__ for each in import_libraries()}


def write_merged(base: Path, config: JsonObject, adapter: Adapter, dtype: str, output: Path) -> Any:
    """Write the weights of base and adapter as one; the log-probs to compare with."""
    torch, _, peft = import_libraries()
    known = set(peft.LoraConfig.__dataclass_fields__)
    settings = peft.LoraConfig(**known_settings(adapter.config, known, peft.__version__))
    settings.inference_mode = True
    model = _load(base, dtype, config)
    ids = torch.arange(1, NUM_TOKENS + 1).mul(7919).remainder(model.config.vocab_size)[None]
    with _readable(f"{adapter.path} does not fit {base}"):
        adapted = peft.PeftModel.from_pretrained(model, adapter.path, config=settings)
    adapted.eval()
    with adapted.disable_adapter():
        plain = _log_probs(adapted, ids)
    wanted = _log_probs(adapted, ids)
    with _readable(f"{adapter.path} cannot be merged"):
        merged = adapted.merge_and_unload(safe_merge=True)
    try:
        merged.save_pretrained(output, max_shard_size="5GB")
    except Exception as error:  # safetensors has errors of its own for a full disk
        raise OutputError(f"cannot write {output}: {_line(error)}") from None
    return ids, plain, wanted


def compare(output: Path, dtype: str, before: Any) -> Difference:
    """Load what was written and compare it with base and adapter. Log-probs show wrong weights,
    names, types and tied embeddings alike, whatever wrote them."""
    ids, plain, wanted = before
    with _readable(f"{output} cannot be loaded again"):
        found = _log_probs(_load(output, dtype), ids)
    return Difference(_distance(plain, wanted), _distance(wanted, found))


def _load(folder: Path, dtype: str, config: JsonObject | None = None) -> Any:
    """The model of a folder, with other settings than the folder's if they are given."""
    torch, transformers, _ = import_libraries()
    transformers.utils.logging.disable_progress_bar()
    with _readable(f"{folder} cannot be loaded"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            **({"config": transformers.AutoConfig.for_model(**config)} if config else {}),
        )
    return model.eval()


def _log_probs(model: Any, ids: Any) -> Any:
    torch = import_libraries()[0]
    with torch.inference_mode():
        return model(input_ids=ids).logits[0].float().log_softmax(-1)


def _distance(one: Any, other: Any) -> float:
    return float((one.exp() * (one - other).abs()).sum(-1).max())


@contextmanager
def _readable(what: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries about one another
            yield
    except Exception as error:  # the libraries raise any type
        raise ConfigError(f"{what}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
