"""The side of `vllm_job` that runs in vLLM's environment: no HTTP, one submission.

python vllm_offline.py make CHECKPOINT FOLDER HIDDEN LAYERS     a model of random weights
python vllm_offline.py generate MODEL SEQS     a job's file per line of stdin, a result per line
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

HEAD = 64
"""Size of an attention head."""


def make(checkpoint: Path, folder: Path, hidden: int, layers: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config.from_pretrained(
        checkpoint,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=max(1, hidden // HEAD // 4),
        head_dim=HEAD,
        layer_types=["full_attention"] * layers,
        max_window_layers=layers,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    folder.mkdir()
    for path in checkpoint.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, folder)
    model.save_pretrained(folder)


def generate(model: str, max_num_seqs: int) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        max_model_len=1024,
        max_num_seqs=max_num_seqs,
        enforce_eager=True,
        enable_chunked_prefill=False,
        gpu_memory_utilization=0.1,
    )
    tokenizer = llm.get_tokenizer()
    tell({"ready": True})
    for line in sys.stdin:
        rows = [json.loads(each) for each in Path(line.strip()).read_text().splitlines()]
        asked = [row["responses_create_params"] for row in rows]
        prompts = [
            each["input"]
            if isinstance(each["input"], str)
            else tokenizer.apply_chat_template(
                each["input"], tokenize=False, add_generation_prompt=True
            )
            for each in asked
        ]
        params = [
            SamplingParams(
                temperature=each["temperature"],
                max_tokens=each["max_output_tokens"],
                ignore_eos=True,
            )
            for each in asked
        ]
        began = time.perf_counter()
        found = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - began
        tell({"seconds": took, "tokens": sum(len(each.outputs[0].token_ids) for each in found)})


def tell(found: object) -> None:
    """One line on the stream that is the first process's stdout: vLLM logs to it too."""
    print(f"\nresult {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    command, *words = sys.argv[1:]
    if command == "make":
        make(Path(words[0]), Path(words[1]), int(words[2]), int(words[3]))
    else:
        generate(words[0], int(words[1]))
