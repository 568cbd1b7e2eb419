"""What ng_export and ng_pairs write, read by trainers themselves: TRL trains a model of random
weights on it, OpenRLHF and LLaMA-Factory load it. Where they are installed: make test-trainers.
"""

import json
import math
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from command import as_function
from exported import Place, line, tool_line

from rollout_kit.analysis.export.formats import FORMATS

export = as_function("ng_export")
pairs = as_function("ng_pairs")

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

END, PAD = "<|end|>", "<|pad|>"

STEPS = 10

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
    command = pairs if FORMATS[form].of_pair else export
    status, said = place.run(command.main, source, f"+format={form}", f"+output_fpath={path}")
    assert status == 0, said
    cache = str(place.folder / "cache")
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)


def settings(kind: str, folder: Path, **more: Any) -> Any:
    return getattr(trl, kind)(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
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
    assert done.global_step == STEPS and math.isfinite(done.training_loss)


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


def strategy(**keys: str) -> Any:
    """OpenRLHF's settings, as far as its datasets read them."""
    data = SimpleNamespace(apply_chat_template=True, **keys)
    return SimpleNamespace(args=SimpleNamespace(data=data), is_rank_0=lambda: False)


def test_openrlhf_reads_prompts_and_completions_as_they_are(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("openrlhf.datasets.sft_dataset")
    rows = load(Place(tmp_path, capsys), "openrlhf_sft")
    keys = strategy(input_key="input", output_key="output")
    read = found.SFTDataset(rows, tokenizer, 2000, keys, num_processors=1)
    assert len(read) == len(rows) == 18
    assert read.prompts[0].endswith("How much is 0?<|end|><|assistant|>")
    assert read.responses[0].endswith("It is 0.<|end|>")
    assert "price" in read.responses[2] and read.responses[2].endswith("It is 2.<|end|>")


def test_openrlhf_reads_pairs_and_prompts(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pytest.importorskip("openrlhf.datasets.reward_dataset")
    place = Place(tmp_path, capsys)
    keys = strategy(prompt_key="prompt", chosen_key="chosen", rejected_key="rejected")
    rows = load(place, "openrlhf_dpo")
    read = found.RewardDataset(rows, tokenizer, 2000, keys, is_dpo=True, num_processors=1)
    assert len(read) == len(rows) == 6
    assert read.rejects[0].endswith("It is nothing.<|end|>")
    prompts = pytest.importorskip("openrlhf.datasets.prompts_dataset")
    rows = load(place, "openrlhf_prompts")
    read = prompts.PromptDataset(rows, tokenizer, strategy(input_key="input", label_key="label"))
    assert len(read) == 6


@pytest.mark.parametrize(
    ("form", "sides"),
    [
        ("llamafactory_sft", ["user", "function", "observation", "assistant"]),
        ("llamafactory_kto", ["user", "function", "observation", "assistant", "assistant"]),
        ("llamafactory_dpo", ["user", "assistant", "assistant"]),
    ],
)
def test_llama_factory_finds_and_converts_every_row(
    form: str,
    sides: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = ModuleType("torchaudio")  # it is imported, and needed for sound only
    sound.__spec__ = ModuleSpec("torchaudio", None)
    monkeypatch.setitem(sys.modules, "torchaudio", sound)
    parser = pytest.importorskip("llamafactory.data.parser")
    converter = pytest.importorskip("llamafactory.data.converter")
    rows = load(Place(tmp_path, capsys), form)
    [found] = parser.get_dataset_list(["out"], str(tmp_path))
    settings = SimpleNamespace(
        streaming=False, preprocessing_num_workers=1, overwrite_cache=True, media_dir=str(tmp_path)
    )
    ours = SimpleNamespace(local_process_index=0)
    read = converter.align_dataset(rows, found, settings, ours)
    assert len(read) == len(rows) and all(row["_prompt"] for row in read)
    longest = max(read, key=lambda row: len(row["_prompt"]))
    assert [turn["role"] for turn in longest["_prompt"] + longest["_response"]] == sides
    assert longest["_system"] == "Be brief."
    if form != "llamafactory_dpo":
        assert [tool["name"] for tool in json.loads(longest["_tools"])] == ["price", "stock"]
