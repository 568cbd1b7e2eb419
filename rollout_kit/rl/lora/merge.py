"""Merges an adapter into its base: checked before and after, written beside and moved into place.

Settings and tokenizer are copied as files, not written anew by a library: an engine that can read
the base's `config.json` can then read the merged model's.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ..._version import __version__
from ...config.keys import MergeLoraConfig
from ...errors import ConfigError, OutputError
from ...reading import sync_folder
from ...serving.weights import digest_of
from ...store.files import draft_of, lock_draft, share_files, write_json
from ...types import JsonObject
from . import weights
from .adapter import WEIGHTS, Adapter, check_base, open_adapter
from .lora_folder import (
    BYTES,
    TOKENIZER,
    ModelFolder,
    count_tokens,
    find_tokenizer,
    open_model,
    read_json,
)

MANIFEST = "merge_manifest.json"

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

TOLERANCES = {"float64": 1e-3, "float32": 1e-3}
TOLERANCE_OF_HALF = 0.1

SPARE_BYTES = 64 * 2**20
"""Room for the tokenizer and the settings."""


def merge(command: MergeLoraConfig, tell: Callable[[str], None]) -> JsonObject:
    """Write the merged model; return its manifest."""
    base, adapter = open_model(command.base), open_adapter(command.adapter.expanduser())
    output = command.output.expanduser()
    adapter.check_fit(base)
    if not command.any_base and (warning := check_base(adapter, base)):
        tell(f"warning: {warning}")
    tokenizer = find_tokenizer(adapter.path, base.path)
    _check_tokens(tokenizer, base)
    dtype = DTYPES[base.dtype] if command.dtype == "auto" else command.dtype
    manifest = _describe(base, adapter, tokenizer, dtype)
    if output.exists():
        return _found_again(output, manifest, tell)
    _check_room(output, base, dtype)
    manifest["versions"] = {"rollout_kit": __version__, **weights.versions()}
    with _draft(output) as draft:
        tell(f"merging {adapter.path} into {base.path} ({dtype})")
        config = _complete(base.config, dtype)
        before = weights.write_merged(base.path, config, adapter, dtype, draft)
        write_json(draft / "config.json", config)
        _copy(tokenizer, TOKENIZER, draft)
        _copy(base.path, ("generation_config.json",), draft)
        _check_shapes(base, draft)
        found = weights.compare(draft, dtype, before)
        tolerance = command.tolerance or TOLERANCES.get(dtype, TOLERANCE_OF_HALF)
        if not found.merged <= tolerance:  # not a number is refused too
            raise OutputError(
                f"the merged model's log-probs are off by {found.merged:.2g}, more than"
                f" tolerance={tolerance:g}: nothing was written; try +dtype=float32"
            )
        manifest["difference"] = {**asdict(found), "tolerance": tolerance}
        manifest["digest"] = digest_of([draft])
        write_json(draft / MANIFEST, manifest)
    for sentence in _judge(found):
        tell(f"warning: {sentence}")
    return manifest


def format_manifest(manifest: JsonObject) -> str:
    found = manifest["difference"]
    return (
        f"merged into {manifest['output']}: the adapter moves log-probs by {found['adapter']:.3g},"
        f" the merge by {found['merged']:.2g} (tolerance {found['tolerance']:g})"
    )


def _describe(base: ModelFolder, adapter: Adapter, tokenizer: Path, dtype: str) -> JsonObject:
    kept = ("r", "lora_alpha", "use_rslora", "use_dora", "target_modules", "modules_to_save")
    settings = {name: adapter.config.get(name) for name in kept}
    return {
        "base": {"path": str(base.path.resolve()), "digest": digest_of([base.path])},
        "adapter": {
            "path": str(adapter.path.resolve()),
            "digest": digest_of([adapter.path / WEIGHTS, adapter.path / "adapter_config.json"]),
            "base_model_name_or_path": adapter.base_name,
            **settings,
        },
        "tokenizer": str(tokenizer.resolve()),
        "dtype": dtype,
    }


def _found_again(output: Path, manifest: JsonObject, tell: Callable[[str], None]) -> JsonObject:
    """The manifest of an earlier merge of the same; OutputError for anything else."""
    with suppress(ConfigError):
        found = read_json(output / MANIFEST)
        same = all(
            found[side]["digest"] == manifest[side]["digest"] for side in ("base", "adapter")
        )
        is_whole = found["digest"] == digest_of([output])
        if same and is_whole and found["dtype"] == manifest["dtype"]:
            tell(f"{output} is this merge already")
            return {**found, "output": str(output)}
    raise OutputError(f"{output} exists and is not this merge: remove it, or name another output")


def _check_tokens(tokenizer: Path, base: ModelFolder) -> None:
    number, rows = count_tokens(tokenizer), base.config.get("vocab_size")
    if number and rows and number > rows:
        raise ConfigError(
            f"the tokenizer in {tokenizer} has {number:,} tokens, and {base.path} has embeddings"
            f" for {rows:,}: resize the base before training"
        )


def _check_room(output: Path, base: ModelFolder, dtype: str) -> None:
    size = next(BYTES[short] for short, name in DTYPES.items() if name == dtype)
    needed = base.num_values * size + SPARE_BYTES
    there = next(folder for folder in output.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise OutputError(
            f"output={output}: the merged model needs {needed / 1e9:.1f} GB, and its disk has"
            f" {free / 1e9:.1f} GB left"
        )


@contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """A folder beside the output, which becomes the output if all goes well."""
    draft = draft_of(output, "merging")
    with ExitStack() as left:
        left.callback(shutil.rmtree, draft, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            descriptor = os.open(draft, os.O_RDONLY)
            left.callback(os.close, descriptor)
            lock_draft(descriptor)
            yield draft
            share_files(draft)
            for path in draft.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            draft.rename(output)
            sync_folder(output)
        except OSError as error:
            raise OutputError(f"cannot write {output}: {error.strerror or error}") from None


def _complete(base: JsonObject, dtype: str) -> JsonObject:
    """The base's settings, with the type of the weights, and a head_dim where it is null: many
    engines take null literally."""
    config = dict(base)
    for key in {"torch_dtype", "dtype"} & config.keys() or {"torch_dtype"}:
        config[key] = dtype
    if "head_dim" in config and config["head_dim"] is None:
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return config


def _copy(source: Path, names: tuple[str, ...], draft: Path) -> None:
    for name in names:
        (draft / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, draft / name)


def _check_shapes(base: ModelFolder, draft: Path) -> None:
    """OutputError if what was written has other tensors than the base."""
    found = open_model(str(draft)).shapes
    wanted = dict(base.shapes)
    if base.config.get("tie_word_embeddings") and "lm_head.weight" not in found:
        wanted.pop("lm_head.weight", None)  # a copy of the embedding
    names = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if names:
        raise OutputError(f"the merged model differs from {base.path} in {', '.join(names[:3])}")


def _judge(found: weights.Difference) -> Iterator[str]:
    if found.adapter == 0:
        yield "the adapter changes nothing: was it trained?"
    elif found.merged > found.adapter / 2:
        yield "rounding hides much of what the adapter changes: merge with +dtype=float32"
