"""Write checkpoints that model servers follow, and continue a training from the last one.

A checkpoint appears complete or not at all, also if the trainer is killed. With torch's own calls:

    manager = CheckpointManager("run/weights", keep_last=3, base="Qwen3-0.6B")
    first = manager.resume(model, optimizer)
    for step in range(first + 1, 101):
        ...
        manager.save(model, optimizer, step, {"reward/mean": 0.5})
"""

import importlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...serving.weights import WEIGHTS
from ...types import JsonObject
from ..lora.adapter import WEIGHTS as ADAPTER
from .folder import INDEX, MARKERS, BadStep, WeightStep, check_step, seal, step_folder
from .sync import open_steps

log = logging.getLogger(__name__)

MODEL, TRAINER, STATE = "model.safetensors", "trainer.pt", "trainer.json"
"""The weights, what torch saves besides them, and what is JSON."""

ONE_FILE = "1000GB"
"""Size from which transformers would write several files."""


class CheckpointManager:
    """The checkpoints of one training in `save_dir`, as `step_N/`; the last `keep_last` are kept.
    `save_dir` is a folder, or `s3://bucket/path`.

    `base` is the folder of the model that training began with: its other files, such as the
    tokenizer, are copied into every checkpoint, so that each can be served alone.
    """

    def __init__(
        self, save_dir: str | Path, keep_last: int = 3, base: str | Path | None = None
    ) -> None:
        if keep_last < 1:
            raise ConfigError(f"keep_last must be at least 1, got {keep_last}")
        self._steps = open_steps(save_dir, "save_dir")
        self.keep_last = keep_last
        self.base = Path(base).expanduser() if base else None
        self.metrics: JsonObject = {}
        """The metrics of the checkpoint that was resumed."""
        self.state: JsonObject = {}
        """Its state, as it was given to `save`."""
        if self.base and not self.base.is_dir():
            raise ConfigError(f"base {self.base}: no such folder")

    @contextmanager
    def write(self, step: int) -> Iterator[Path]:
        """Context with an empty folder for the checkpoint; it is finished when the block ends."""
        scratch = self._steps.folder / f".step_{step}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        yield scratch
        self._add_files_of_base(scratch)
        seal(scratch)
        self._steps.publish(scratch, step)
        self._cleanup()

    def save(
        self,
        model: Any,
        optimizer: Any = None,
        step: int = 0,
        metrics: Mapping[str, float] | None = None,
        state: JsonObject | None = None,
    ) -> Path:
        """Write the checkpoint of a torch module; its folder on this machine. `state` is kept as
        JSON: for example the position in a buffer."""
        torch, safetensors = _import("torch"), _import("safetensors.torch")
        with self.write(step) as folder:
            if save_pretrained := getattr(model, "save_pretrained", None):
                save_pretrained(folder, max_shard_size=ONE_FILE)  # it knows which weights are tied
            else:
                safetensors.save_model(model, str(folder / MODEL), metadata={"format": "pt"})
            if optimizer is not None:
                torch.save({"optimizer": optimizer.state_dict()}, folder / TRAINER)
            about = {"step": step, "metrics": dict(metrics or {}), "state": state or {}}
            (folder / STATE).write_text(json.dumps(about))
        return step_folder(self._steps.folder, step)

    def resume(self, model: Any, optimizer: Any = None) -> int:
        """Load the last sound checkpoint into `model` and `optimizer`; return its step, 0 if there
        is none."""
        found = self.latest()
        if found is None:
            return 0
        torch, safetensors = _import("torch"), _import("safetensors.torch")
        if (adapter := found.folder / ADAPTER).is_file():
            weights = safetensors.load_file(adapter)
            _import("peft").set_peft_model_state_dict(model, weights)
        else:
            safetensors.load_model(model, str(found.folder / MODEL))
        if optimizer is not None:
            saved = torch.load(found.folder / TRAINER, map_location="cpu")
            optimizer.load_state_dict(saved["optimizer"])
        about = json.loads((found.folder / STATE).read_text())
        self.metrics, self.state = about["metrics"], about["state"]
        return found.version

    load = resume

    def keep_best(self, step: int | None) -> None:
        """Keep this checkpoint, however old it gets, as `best`; None changes nothing."""
        if step is None or self._steps.read_best() == step:
            return
        if step in (each.version for each in self._steps.find()):
            self._steps.mark_best(step)

    def latest(self) -> WeightStep | None:
        """The last checkpoint whose files are as they were written."""
        for step in self._steps.find():
            try:
                self._steps.fetch(step)
                check_step(step)
                return step
            except BadStep as error:
                log.warning("%s is left out: %s", step, error)
        return None

    def _add_files_of_base(self, folder: Path) -> None:
        """Copy what is no weights. Files of the base win: newer libraries write settings that
        engines which serve the base may not read."""
        for path in self.base.iterdir() if self.base else ():
            own = path.suffix in WEIGHTS or path.name in (INDEX, TRAINER, STATE, *MARKERS)
            if path.is_file() and not own and not path.name.startswith("."):
                shutil.copyfile(path, folder / path.name)

    def _cleanup(self) -> None:
        best = self._steps.read_best()
        for step in self._steps.find()[self.keep_last :]:
            if step.version != best:
                self._steps.remove(step.version)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"CheckpointManager needs torch and safetensors ({error})") from None
