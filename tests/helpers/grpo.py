"""TRL's GRPOTrainer on a CPU, with the tiny model."""

from pathlib import Path
from typing import Any

from workplace import ROOT

MODEL = ROOT / "responses_api_models/local_model"


def configure(folder: Path, steps: int, prompts: int, members: int, **settings: Any) -> Any:
    """Arguments of a trainer that takes a few steps and saves nothing."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        max_steps=steps,
        per_device_train_batch_size=prompts * members,
        num_generations=members,
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
        **settings,
    )


def load_tiny() -> dict[str, Any]:
    """The model and the tokenizer of a trainer."""
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    torch.set_num_threads(1)
    return {
        "model": Qwen3ForCausalLM.from_pretrained(MODEL / "checkpoint", dtype=torch.float32),
        "processing_class": AutoTokenizer.from_pretrained(MODEL / "checkpoint"),
    }
