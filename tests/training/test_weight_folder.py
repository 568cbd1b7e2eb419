"""The folder in which a trainer hands over weights, and the follower that reads it."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from test_weights import save

from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.rl import CheckpointManager
from rollout_kit.rl.weights.folder import BadStep, WeightStep, check_step, find_steps, seal
from rollout_kit.rl.weights.follower import Follower
from rollout_kit.rl.weights.sync import WeightSync

ROOT = Path(__file__).resolve().parents[2]


def write_step(folder: Path, version: int, fill: int = 0, *, marker: str | None = "") -> Path:
    """A step with one tensor; `marker` is what STABLE says, None for no marker."""
    step = folder / f"step_{version}"
    step.mkdir(parents=True, exist_ok=True)
    save(step, {"weight": bytes([fill]) * 64})
    if marker is not None:
        (step / "STABLE").write_text(marker)
    return step


class Served:
    """What a model server would have loaded; a step of `broken` fails."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.loaded: list[int] = []
        self.broken: set[int] = set()
        self.follower = Follower(
            WeightSync(path=str(folder), **{"poll_s": 1e-9, **keys}), "policy_model", self.load
        )

    async def load(self, step: WeightStep) -> None:
        if step.version in self.broken:
            raise ConfigError("it does not fit the engine")
        self.loaded.append(step.version)

    def look(self, times: int = 1) -> int:
        async def main() -> int:
            for _ in range(times):
                await self.follower.look()
            return self.follower.version

        return asyncio.run(main())


def test_only_finished_steps_exist(tmp_path: Path) -> None:
    write_step(tmp_path, 2)
    write_step(tmp_path, 10)
    write_step(tmp_path, 11, marker=None)
    write_step(tmp_path, 12, marker=None)
    (tmp_path / "step_12/_SUCCESS").touch()
    for name in ("step_x", "other", ".step_13"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "STABLE").touch()
    assert [step.version for step in find_steps(tmp_path)] == [12, 10, 2]
    assert find_steps(tmp_path / "missing") == []


def cut(step: Path) -> None:
    raw = (step / "model.safetensors").read_bytes()
    (step / "model.safetensors").write_bytes(raw[:-8])


def flip(step: Path) -> None:
    raw = bytearray((step / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (step / "model.safetensors").write_bytes(raw)


def garble(step: Path) -> None:
    size = (step / "model.safetensors").stat().st_size
    (step / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b"x" * (size - 8))


def lack(step: Path) -> None:
    (step / "model.safetensors").unlink()


def lack_shard(step: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (step / "model.safetensors.index.json").write_text(json.dumps(index))


def empty(step: Path) -> None:
    (step / "model.safetensors").write_bytes(b"")


DAMAGES = [cut, garble, lack, lack_shard, empty]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_damaged_step_is_refused_and_the_version_in_use_stays(
    tmp_path: Path, damage: Any, is_sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path)
    write_step(tmp_path, 1)
    step = write_step(tmp_path, 2)
    if is_sealed:
        seal(step)
    damage(step)
    assert served.look() == 1 and served.loaded == [1]
    assert "step_2" in served.follower.figures()["refused"]
    assert "step_2 is not loaded" in caplog.text and "version 0 stays in use" in caplog.text
    seal(write_step(tmp_path, 3))
    assert served.look() == 3 and served.follower.figures().get("refused") is None


def test_checksums_in_the_marker_find_what_a_size_cannot(tmp_path: Path) -> None:
    step = write_step(tmp_path, 1)
    seal(step)
    check_step(find_steps(tmp_path)[0])
    flip(step)
    with pytest.raises(BadStep, match="its checksum differs"):
        check_step(find_steps(tmp_path)[0])
    (step / "STABLE").write_text('{"files": 3}')
    with pytest.raises(BadStep, match="cannot be read"):
        check_step(find_steps(tmp_path)[0])


def test_a_step_that_fails_is_tried_again_and_given_up_until_it_is_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path, max_tries=3)
    served.broken = {1}
    step = write_step(tmp_path, 1)
    assert served.look(times=5) == 0
    assert caplog.text.count("step_1 is not loaded: it does not fit the engine") == 1
    assert caplog.text.count("step_1 is given up") == 1
    served.broken = set()
    assert served.look() == 0
    os.utime(step / "STABLE", (1, 1))
    assert served.look() == 1


def test_the_newest_usable_step_wins_and_versions_only_rise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path)
    for version in (3, 4, 5):
        write_step(tmp_path, version)
    served.broken = {5}
    assert served.look() == 4 and served.loaded == [4]
    os.utime(tmp_path / "step_4/STABLE", (1, 1))
    assert served.look() == 4 and served.look() == 4
    assert caplog.text.count("step_4 was written again after it was loaded") == 1
    for version in (4, 5):
        (tmp_path / f"step_{version}/STABLE").unlink()
    assert served.look(times=2) == 4
    assert caplog.text.count("ends with step 3") == 1


def test_a_step_that_is_removed_while_it_is_loaded_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path)
    step = write_step(tmp_path, 1)

    async def load(found: WeightStep) -> None:
        for path in step.iterdir():
            path.unlink()
        step.rmdir()
        raise FileNotFoundError("model.safetensors")

    served.follower._load = load
    assert served.look() == 0 and not caplog.records


def test_a_step_that_appears_during_a_load_comes_next(tmp_path: Path) -> None:
    served = Served(tmp_path)
    write_step(tmp_path, 1)
    load = served.load

    async def slow(step: WeightStep) -> None:
        if step.version == 1:
            write_step(tmp_path, 2)
            write_step(tmp_path, 3)
            asked = asyncio.create_task(served.follower.look())
            await asyncio.sleep(0)
            assert not asked.done()
        await load(step)

    served.follower._load = slow

    async def main() -> None:
        await served.follower.look()
        await served.follower.look()

    asyncio.run(main())
    assert served.loaded == [1, 3]


def test_the_follower_loads_what_is_there_at_its_start_and_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        served = Served(tmp_path, poll_s=0.001)
        write_step(tmp_path, 7)
        await served.follower.start()
        assert served.follower.version == 7
        write_step(tmp_path, 8)
        await served.follower.wait_for(8, timeout_s=60)
        with pytest.raises(ModelError, match="version 7 of the weights is over") as over:
            await served.follower.wait_for(7, timeout_s=60)
        assert not over.value.retryable
        with pytest.raises(ModelError, match="version 9 of the weights did not come") as late:
            await served.follower.wait_for(9, timeout_s=0.01)
        assert late.value.retryable
        await served.follower.stop()

    asyncio.run(main())


def test_all_who_may_read_a_folder_may_read_its_weights(tmp_path: Path) -> None:
    """Another user's server loads them from a shared disk."""
    for mask, mode in ((0o022, 0o644), (0o027, 0o640), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            folder = tmp_path / f"{mask}"
            with CheckpointManager(folder).write(1) as step:
                (step / "model.safetensors").write_bytes(b"weights")
                (step / "model.safetensors").chmod(0o600)  # as safetensors does
        finally:
            os.umask(before)
        modes = {path.stat().st_mode & 0o777 for path in (folder / "step_1").iterdir()}
        assert modes == {mode}


def test_a_checkpoint_appears_whole_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    base = save(tmp_path / "base", {"weight": b"base"})
    (base / "tokenizer.json").write_text("{}")
    manager = CheckpointManager(tmp_path / "run", keep_last=2, base=base)
    for step in (1, 2, 3):
        with manager.write(step) as folder:
            assert [each.version for each in find_steps(tmp_path / "run")] == list(
                range(step - 1, max(0, step - 3), -1)
            )
            save(folder, {"weight": bytes([step])})
    assert [each.version for each in find_steps(tmp_path / "run")] == [3, 2]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step_2", "step_3"]
    names = {path.name for path in (tmp_path / "run/step_3").iterdir()}
    assert names == {"STABLE", "config.json", "model.safetensors", "tokenizer.json"}
    with pytest.raises(RuntimeError), manager.write(4) as folder:
        raise RuntimeError("killed while writing")
    assert manager.latest() == find_steps(tmp_path / "run")[0]


def test_a_damaged_checkpoint_is_left_out_when_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path)
    for step in (1, 2):
        with manager.write(step) as folder:
            save(folder, {"weight": bytes([step])})
    flip(tmp_path / "step_2")
    found = manager.latest()
    assert found is not None and found.version == 1
    assert "step_2 is left out: model.safetensors is not what was written" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.trainers
def test_a_training_goes_on_where_it_was(tmp_path: Path) -> None:
    import torch

    def begin() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight  # tied, as embeddings are
        return model, torch.optim.AdamW(model.parameters())

    def train(model: Any, optimizer: Any) -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    manager = CheckpointManager(tmp_path)
    model, optimizer = begin()
    assert manager.resume(model, optimizer) == 0
    train(model, optimizer)
    manager.save(model, optimizer, 5, {"reward/mean": 0.5}, {"position": 7})
    train(model, optimizer)
    again, its_optimizer = begin()
    other = CheckpointManager(tmp_path)
    assert other.resume(again, its_optimizer) == 5
    assert (other.metrics, other.state) == ({"reward/mean": 0.5}, {"position": 7})
    train(again, its_optimizer)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.trainers
def test_tied_weights_have_the_names_that_engines_read(tmp_path: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    base = ROOT / "responses_api_models/local_model/checkpoint"
    model = AutoModelForCausalLM.from_pretrained(base)
    folder = CheckpointManager(tmp_path, base=base).save(model, step=1)
    names = []
    for each in (base, folder):
        with safe_open(each / "model.safetensors", "pt") as weights:
            names.append(set(weights.keys()))
    assert names[0] == names[1]
    assert CheckpointManager(tmp_path).resume(model) == 1


def test_bad_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_last must be at least 1"):
        CheckpointManager(tmp_path, keep_last=0)
    with pytest.raises(ConfigError, match="no such folder"):
        CheckpointManager(tmp_path, base=tmp_path / "missing")
    with pytest.raises(ValueError, match="needs the path of the folder"):
        WeightSync()
    with pytest.raises(ValueError, match="mode external needs no path"):
        WeightSync(mode="external", path="x")
