"""What exports write for verl, SkyRL and Axolotl, read by their own data sets. `make trainers`
installs them in an environment of their own, `make test-trainers` runs this."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import as_function
from exported import Place, line, tool_line
from support import read_jsonl
from trainer_engine import CHECKPOINT

from rollout_kit.analysis.export.formats import FORMATS

export = as_function("ng_export")
pairs = as_function("ng_pairs")

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


def written(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    *more: str,
    answers: Sequence[Any] = ANSWERS,
) -> str:
    place = Place(folder, capsys)
    place.write(answers)
    path = folder / ("out.parquet" if FORMATS[form].is_parquet else "out.jsonl")
    words = [folder / "rollouts.jsonl", f"+format={form}", f"+output_fpath={path}", *more]
    status, said = place.run((pairs if FORMATS[form].of_pair else export).main, *words)
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


def test_skyrl_reads_prompts_environments_and_right_answers(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("skyrl.train.dataset.dataset")
    path = written(tmp_path, capsys, "skyrl_rl")
    read = found.PromptDataset(path, tokenizer, max_prompt_length=200, num_workers=1)
    assert len(read) == 4
    for task, (messages, env_class, extra, _) in enumerate(read[at] for at in range(4)):
        assert messages[-1] == {"content": f"How much is {task}?", "role": "user"}
        assert env_class == "solver"
        assert extra["reward_spec"] == {"method": "rule", "ground_truth": f"{task}"}


def axolotl_config(path: str) -> tuple[Any, Any]:
    """What the YAML beside an export says, as Axolotl's loaders take it."""
    found = yaml.safe_load(Path(path).with_suffix(".yaml").read_text())

    class Keys(dict[str, Any]):
        __getattr__ = dict.get

    return Keys(sequence_len=512, train_on_inputs=False, **found), Keys(found["datasets"][0])


def test_axolotl_trains_on_the_answers_and_on_nothing_else(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("axolotl.prompt_strategies.chat_template")
    path = written(tmp_path, capsys, "axolotl_sft", "+min_reward=1")
    config, of_file = axolotl_config(path)
    strategy = found.load(tokenizer, config, of_file)
    rows = read_jsonl(Path(path))
    assert len(rows) == 4
    for task, row in enumerate(rows):
        made = strategy.tokenize_prompt(row)
        trained = [token for token in made["labels"] if token != -100]
        assert tokenizer.decode(trained, skip_special_tokens=True).strip() == f"It is {task}."
        assert "How much" in tokenizer.decode(made["input_ids"])


def test_axolotl_knows_tools_and_calls(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("axolotl.prompt_strategies.chat_template")
    call = ("price", '{"item": "a"}')
    path = written(tmp_path, capsys, "axolotl_sft", answers=[tool_line(1, 0, 1.0, call)])
    config, of_file = axolotl_config(path)
    [row] = read_jsonl(Path(path))
    made = found.load(tokenizer, config, of_file).tokenize_prompt(row)
    whole = tokenizer.decode(made["input_ids"])
    assert "Look up the price." in whole and "Look up the stock." in whole
    trained = tokenizer.decode([token for token in made["labels"] if token != -100])
    assert '"item": "a"' in trained and "It is 2." in trained and "How much" not in trained


def test_axolotl_reads_pairs(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("axolotl.prompt_strategies.dpo.chat_template")
    path = written(tmp_path, capsys, "axolotl_dpo")
    config, of_file = axolotl_config(path)
    transform = getattr(found, of_file["type"].split(".")[-1])(config)
    transform = transform[0] if isinstance(transform, tuple) else transform
    rows = read_jsonl(Path(path))
    assert len(rows) == 4
    for task, row in enumerate(rows):
        made = transform(row, tokenizer=tokenizer)
        assert f"How much is {task}?" in made["prompt"]
        assert made["chosen"].startswith(f"It is {task}.")
        assert made["rejected"].startswith("It is nothing.")
