"""What ng_export and ng_pairs write, read and trained on by TRL itself, with a model of random
weights. Runs where TRL is installed: make test-trainers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from exported import Place, line, tool_line

from rollout_kit.cli import export as command

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

END, PAD = "<|end|>", "<|pad|>"

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] }}{{ call['function']['arguments'] }}{% endfor %}"
    + END
    + "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

ANSWERS = [
    each
    for task in range(6)
    for each in (
        line(task, 0, f"It is {task}.", 1.0),
        line(task, 1, "It is nothing.", 0.0),
        tool_line(task, 2, 1.0, ("price", f'{{"item": "{task}"}}'), ("stock", '{"shelf": 2}')),
    )
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    bytes_only = tokenizers.ByteLevelBPETokenizer()
    bytes_only.train_from_iterator([], vocab_size=300, special_tokens=[END, PAD])
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_only._tokenizer, eos_token=END, pad_token=PAD
    )
    made.chat_template = TEMPLATE
    return made


def model(kind: str, folder: Path, **more: Any) -> Any:
    """Saved and loaded, as trainers load a reference model of their own."""
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=1,
        eos_token_id=0,
        **more,
    )
    getattr(transformers, kind).from_config(config).save_pretrained(folder / "model")
    return getattr(transformers, kind).from_pretrained(folder / "model")


def load(place: Place, form: str) -> Any:
    place.write(ANSWERS)
    path = place.folder / "out.jsonl"
    source = place.folder / "rollouts.jsonl"
    status, said = place.run(command.main, source, f"+format={form}", f"+output_fpath={path}")
    assert status == 0, said
    cache = str(place.folder / "cache")
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)


def settings(kind: str, folder: Path, **more: Any) -> Any:
    return getattr(trl, kind)(
        output_dir=str(folder / "out"),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("trl_sft", "SFT"),
        ("trl_prompt_completion", "SFT"),
        ("trl_dpo", "DPO"),
        ("trl_reward", "Reward"),
        ("trl_kto", "KTO"),
    ],
)
def test_trl_trains_on_it(
    form: str, kind: str, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load(Place(tmp_path, capsys), form)
    of = "AutoModelForSequenceClassification" if kind == "Reward" else "AutoModelForCausalLM"
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model(of, tmp_path, **({"num_labels": 1} if kind == "Reward" else {})),
        args=settings(f"{kind}Config", tmp_path),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    assert len(trainer.train_dataset) == len(rows)
    done = trainer.train()
    assert done.global_step == 2 and math.isfinite(done.training_loss)


def test_tools_and_calls_are_in_the_text_that_trl_trains_on(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load(Place(tmp_path, capsys), "trl_sft")
    trainer = trl.SFTTrainer(
        model=model("AutoModelForCausalLM", tmp_path),
        args=settings("SFTConfig", tmp_path, max_length=None),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    texts = [tokenizer.decode(row["input_ids"]) for row in trainer.train_dataset]
    for row, text in zip(rows, texts, strict=True):
        assert text.endswith(END) and "How much is" in text
        for tool in json.loads(row["tools"] or "[]"):
            assert tool["function"]["description"] in text
    assert any('price{"item": "3"}stock{"shelf": 2}' in text for text in texts)
