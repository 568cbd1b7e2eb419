"""What ng_export writes for verl, read by verl's own data sets. `make trainers` installs verl in an
environment of its own, `make test-trainers` runs this."""

from pathlib import Path
from typing import Any

import pytest
from exported import Place, line
from trainer_engine import CHECKPOINT

from rollout_kit.cli import export

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

pytest.importorskip("verl")
transformers = pytest.importorskip("transformers")

ANSWERS = [
    each
    for task in range(4)
    for each in (line(task, 0, f"It is {task}.", 1.0), line(task, 1, "It is nothing.", 0.0))
]


@pytest.fixture
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(CHECKPOINT)


def written(folder: Path, capsys: pytest.CaptureFixture[str], form: str, *more: str) -> str:
    place = Place(folder, capsys)
    place.write(ANSWERS)
    path = folder / "out.parquet"
    words = [folder / "rollouts.jsonl", f"+format={form}", f"+output_fpath={path}", *more]
    status, said = place.run(export.main, *words)
    assert status == 0, said
    return str(path)


def test_verl_reads_prompts_and_right_answers(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset  # type: ignore[import-not-found]

    config = OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 200})
    read = RLHFDataset(written(tmp_path, capsys, "verl_rl"), tokenizer, config)
    assert len(read) == 4
    for task, row in enumerate(read):
        assert [each["role"] for each in row["raw_prompt"]] == ["system", "user"]
        assert row["raw_prompt"][-1]["content"] == f"How much is {task}?"
        assert row["reward_model"]["ground_truth"] == f"{task}"
        assert row["data_source"] and row["index"] == task


def test_verl_trains_on_the_answers_and_on_nothing_else(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from verl.utils.dataset.multiturn_sft_dataset import (  # type: ignore[import-not-found]
        MultiTurnSFTDataset,
    )

    path = written(tmp_path, capsys, "verl_sft", "+min_reward=1")
    read = MultiTurnSFTDataset(path, tokenizer, {"max_length": 256, "truncation": "error"})
    assert len(read) == 4
    for task, row in enumerate(read):
        trained = row["input_ids"][row["loss_mask"].bool()]
        text = tokenizer.decode(trained, skip_special_tokens=True)
        assert text.strip() == f"It is {task}."
        assert tokenizer.eos_token_id in trained.tolist(), "the end of the answer is trained"
