"""Train a LoRA adapter with TRL: on solutions, or on preference pairs.

python examples/dpo/train.py sft MODEL TASKS OUTPUT [--set max_steps=8 …]
python examples/dpo/train.py dpo MODEL PAIRS OUTPUT
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

COMMON = {
    "per_device_train_batch_size": 32,
    "lr_scheduler_type": "linear",
    "warmup_steps": 5,
    "max_length": 256,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}
OWN: dict[str, dict[str, Any]] = {
    "sft": {"learning_rate": 2e-4, "num_train_epochs": 1},
    "dpo": {"learning_rate": 3e-4, "num_train_epochs": 2, "beta": 1.0},
}
LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=OWN)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--set", nargs="*", default=[], help="settings of TRL, as beta=0.1")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    disable_progress_bars()
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    read = {"sft": read_solution, "dpo": read_pair}[args.kind]
    rows = [read(json.loads(line), tokenizer) for line in args.data.open()]
    given = {name: json.loads(value) for name, value in (each.split("=") for each in args.set)}
    of, config_of = {"sft": (SFTTrainer, SFTConfig), "dpo": (DPOTrainer, DPOConfig)}[args.kind]
    trainer = of(
        model=model,
        args=config_of(output_dir=str(args.output), **{**COMMON, **OWN[args.kind], **given}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LORA,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model(str(args.output))
    last = [each for each in trainer.state.log_history if "loss" in each][-1]
    shown = ("loss", "mean_token_accuracy", "rewards/accuracies", "rewards/margins")
    found = ", ".join(f"{name} {float(last[name]):.3f}" for name in shown if name in last)
    print(f"{args.kind}: {len(rows):,} rows, {trainer.state.global_step} steps; the last: {found}")


def read_solution(task: dict[str, Any], tokenizer: Any) -> dict[str, str]:
    """Prompt and solution of a task. TRL adds the token that ends a turn."""
    prompt = render(task["responses_create_params"]["input"], tokenizer)
    return {"prompt": prompt, "completion": task["solution"]}


def read_pair(pair: dict[str, Any], tokenizer: Any) -> dict[str, str]:
    """The exact text: from messages TRL would also train what the template writes behind a turn."""
    [chosen], [rejected] = pair["chosen"], pair["rejected"]
    prompt = render(pair["prompt"], tokenizer)
    return {"prompt": prompt, "chosen": chosen["content"], "rejected": rejected["content"]}


def render(messages: list[dict[str, str]], tokenizer: Any) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


if __name__ == "__main__":
    main()
