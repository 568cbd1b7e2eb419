"""A reward model of Hugging Face in the server's process: tiny ones with random weights."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from support import skip_unless_installed

import rollout_kit as rk
from rollout_kit.api.testing import making, mount, text_response
from rollout_kit.serving.judges.classifier import Classifier
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

skip_unless_installed("torch", "transformers", "tokenizers")

pytestmark = pytest.mark.trainers

Server = load("resources_servers", "reward_model")

WORDS = [f"w{number}" for number in range(200)]
CHAT = "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} </s> {% endfor %}"


def write_model(folder: Path, kind: str, num_labels: int = 1, pad: bool = True) -> Path:
    """An encoder or a decoder whose words are WORDS."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    words = ["<pad>", "<unk>", "</s>", "<|user|>", "<|assistant|>", *WORDS]
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        unk_token="<unk>",
        pad_token="<pad>" if pad else None,
        eos_token="</s>",
    )
    torch.set_num_threads(1)  # more only wait for one another in so small a model
    torch.manual_seed(7)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "vocab_size": len(words)}
    size |= {"pad_token_id": 0 if pad else None}
    size |= {"num_labels": num_labels, "max_position_embeddings": 128}
    if kind == "encoder":
        model: Any = BertForSequenceClassification(BertConfig(**size, initializer_range=0.5))
    else:
        tokenizer.chat_template = CHAT
        model = LlamaForSequenceClassification(LlamaConfig(**size, initializer_range=0.5))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def score(rows: list[dict[str, Any]], answers: list[str], **settings: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with mount({"rm": making(Server, **settings)}) as peers:

            async def verify(row: dict[str, Any], answer: str) -> Any:
                with entered(Session()):
                    body = {**row, "response": text_response(answer)}
                    return await peers.call("rm", "/verify", body, dict)

            asked = [verify(row, answer) for row, answer in zip(rows, answers, strict=True)]
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(main())


def texts(number: int) -> tuple[list[dict[str, Any]], list[str]]:
    draw = random.Random(3)
    asked = [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(number)]
    answers = [" ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for _ in range(number)]
    rows = [
        {"responses_create_params": {"input": [{"role": "user", "content": text}]}}
        for text in asked
    ]
    return rows, answers


@pytest.mark.parametrize(
    ("kind", "form", "pad"),
    [
        ("encoder", "pair", True),
        ("encoder", "text", True),
        ("decoder", "chat", True),
        ("decoder", "chat", False),
    ],
)
def test_two_thousand_verdicts_in_batches_are_those_of_the_model_alone(
    tmp_path: Path, kind: str, form: str, pad: bool
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = write_model(tmp_path, kind, pad=pad)
    rows, answers = texts(2_000)
    found = score(rows, answers, model_path=str(folder), form=form)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    for row, answer, line in zip(rows, answers, found, strict=True):
        question = row["responses_create_params"]["input"][0]["content"]
        if form == "pair":
            inputs = tokenizer(question, answer, return_tensors="pt")
        elif form == "text":
            inputs = tokenizer(f"{question}\n\n{answer}", return_tensors="pt")
        else:
            said = f"<|user|> {question} </s> <|assistant|> {answer} </s> "
            inputs = tokenizer(said, add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            alone = model(**inputs).logits[0, 0].item()
        assert line["reward"] == pytest.approx(alone, abs=1e-4)
    assert len({round(line["reward"], 3) for line in found}) > 500


def test_of_several_classes_one_is_the_good_one(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "encoder", num_labels=3)
    rows, answers = texts(3)
    by_label = [
        score(rows, answers, model_path=str(folder), form="text", label=label) for label in range(3)
    ]
    for lines in zip(*by_label, strict=True):
        assert sum(line["reward"] for line in lines) == pytest.approx(1.0)


def test_long_texts_and_special_tokens_get_no_reward(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "decoder")
    rows, _ = texts(3)
    answers = ["w1 " * 500, "w1 </s> <|user|> w2", "w1"]
    long, special, good = score(rows, answers, model_path=str(folder))
    assert "too long for the reward model, which reads 128" in str(long)
    assert "has the special token '</s>'" in str(special)
    assert isinstance(good["reward"], float)
    cut, *_ = score(rows, answers, model_path=str(folder), truncate=True)
    assert isinstance(cut["reward"], float)


def test_folders_that_hold_no_such_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "truncates": False}
    with pytest.raises(rk.ConfigError, match="no folder of a model"):
        Classifier(str(tmp_path), **settings)
    (tmp_path / "config.json").write_text('{"model_type": "unheard"}')
    with pytest.raises(rk.ConfigError, match="model_path: "):
        Classifier(str(tmp_path), **settings)
    folder = write_model(tmp_path / "encoder", "encoder")
    with pytest.raises(rk.VerifyError, match="no chat template: set form"):
        Classifier(str(folder), **settings).score([[{"role": "user", "content": "w1"}]])


def test_a_language_model_without_a_head_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    write_model(tmp_path, "decoder")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4, vocab_size=205)).save_pretrained(
        tmp_path
    )
    with pytest.raises(rk.ConfigError, match=r"no weights for score\.weight: it is no classifier"):
        Classifier(str(tmp_path), device="cpu", dtype="float32", truncates=False)
