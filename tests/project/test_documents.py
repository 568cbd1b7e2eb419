"""The users' documents on infrastructure, optimization and production: their commands as written.

The blocks are quoted. They run in bash, one after the other in one folder, against a simulated
endpoint behind an `ng_run`. Ten thousand rows are four here, and ssh and scp lead to this machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S, read_jsonl
from workplace import ROOT, said_until

from rollout_kit.serving.sockets import bound_socket

INFRASTRUCTURE = r"""
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=train.jsonl \
    +output_jsonl_fpath=rollouts.jsonl \
    +responses_create_params.max_output_tokens=1024 \
    +num_samples_in_parallel=20 \
    +limit=null
---
ng_collect_rollouts \
    +agent_name=openai_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=openai_rollouts.jsonl \
    +responses_create_params.model=gpt-4o-mini \
    +responses_create_params.temperature=0.3 \
    +responses_create_params.max_output_tokens=512 \
    +num_samples_in_parallel=8
---
# Split 100K tasks into 10 chunks of 10K each
split -l 10000 -d --additional-suffix=.jsonl large_dataset.jsonl chunk_
---
# From coordination machine
for i in {0..9}; do
    scp chunk_$(printf "%02d" $i).jsonl user@machine$i:/path/to/workspace/
done
---
# On machine 0
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=chunk_00.jsonl \
    +output_jsonl_fpath=rollouts_00.jsonl

# On machine 1
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=chunk_01.jsonl \
    +output_jsonl_fpath=rollouts_01.jsonl
---
# Parallel SSH execution
for i in {0..9}; do
    ssh user@machine$i "cd /path/to/workspace && \
        ng_collect_rollouts \
        +agent_name=my_agent \
        +input_jsonl_fpath=chunk_$(printf '%02d' $i).jsonl \
        +output_jsonl_fpath=rollouts_$(printf '%02d' $i).jsonl" &
done
wait
---
# Download results from all machines
for i in {0..9}; do
    scp user@machine$i:/path/to/workspace/rollouts_$(printf "%02d" $i).jsonl .
done

# Merge into single file
cat rollouts_*.jsonl > final_rollouts.jsonl

# Verify count
echo "Total rollouts: $(wc -l < final_rollouts.jsonl)"
---
ng_collect_rollouts \
    +agent_name=azure_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=azure_rollouts.jsonl \
    +responses_create_params.max_output_tokens=512 \
    +responses_create_params.temperature=0.2 \
    +num_samples_in_parallel=5 \
    +limit=1000
---
# Measure actual token usage
jq '.usage.total_tokens' rollouts.jsonl | awk '{s+=$1} END {print "Avg tokens/sample:", s/NR}'
"""

OPTIMIZATION = r"""
ng_collect_rollouts \
    +agent_name=openai_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=short_rollouts.jsonl \
    +responses_create_params.max_output_tokens=512  # Set minimum needed
---
# Send a few dummy requests before large collection
curl -X POST http://localhost:8000/run \
  -H "Content-Type: application/json" \
  -d '{"responses_create_params": {"input": [{"role": "user", "content": "test"}]}}'
---
# Phase 1: Collect without verification (modify resource server to skip)
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=tasks.jsonl \
    +output_jsonl_fpath=unverified_rollouts.jsonl
"""

PRODUCTION = r"""
# Time your collection
time ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=benchmark.jsonl \
    +output_jsonl_fpath=benchmark_rollouts.jsonl \
    +limit=1000
---
# Append metrics to log file
echo "$(date),1000,$elapsed_sec,$samples_per_sec,$avg_reward" >> throughput_log.csv

# Later, analyze trends
column -t -s, throughput_log.csv
---
# Initial run (may be interrupted)
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=large_dataset.jsonl \
    +output_jsonl_fpath=large_rollouts.jsonl \
    +limit=10000

# If interrupted, check how many completed
wc -l large_rollouts.jsonl
---
# Resume from where you left off
tail -n +5 large_dataset.jsonl > remaining.jsonl
ng_collect_rollouts \
    +agent_name=my_agent \
    +input_jsonl_fpath=remaining.jsonl \
    +output_jsonl_fpath=large_rollouts.jsonl  # Appends due to 'a' mode
---
split -l 10000 -d --additional-suffix=.jsonl huge_dataset.jsonl huge_chunk_
cat rollouts_*.jsonl > final_rollouts.jsonl
"""

CONFIG = """
config_paths:
  - resources_servers/math_with_verify/configs/math_with_verify.yaml
endpoint:
  responses_api_models:
    simulated_model: {entrypoint: app.py, port: %(endpoint)d, latency_s: 0.001}
"""

AGENT = """
%(name)s:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: math_with_verify}
      model_server: {type: responses_api_models, name: %(model)s}
"""

OPENAI = """
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: http://127.0.0.1:%(endpoint)d/v1
      openai_api_key: ${OPENAI_API_KEY}
      openai_model: gpt-4o
"""

ON_THIS_MACHINE = """#!/bin/bash
# ssh runs its command, and scp copies, in the folder that stands for the other machine
args=("${@//\\/path\\/to\\/workspace/$WORKSPACE}")
case "$0" in
    */ssh) exec bash -c "${args[*]:1}" ;;
    */scp) exec cp "${args[@]#user@machine*:}" ;;
esac
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder beside a running `ng_run` with the agents that the documents name."""
    pytest.importorskip("math_verify")
    folder = tmp_path_factory.mktemp("documents")
    with bound_socket("127.0.0.1", 0) as head, bound_socket("127.0.0.1", 0) as other:
        ports = {"endpoint": other.getsockname()[1], "head": head.getsockname()[1]}
    text = CONFIG % ports + OPENAI % ports
    for name in ("my_agent", "openai_agent", "azure_agent"):
        text += AGENT % {"name": name, "model": "policy_model"}
    (folder / "run.yaml").write_text(text)
    env = f'OPENAI_API_KEY: "sk-proj-1234"\nhead_server: {{port: {ports["head"]}}}\n'
    (folder / "env.yaml").write_text(env)
    (folder / "machine").mkdir()
    (folder / "machine/env.yaml").write_text(env)
    _write_rows(folder)
    for name in ("ssh", "scp"):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(ON_THIS_MACHINE)
        (folder / "bin" / name).chmod(0o755)
    for name in ("collect_rollouts", "run"):
        script = f"import sys; from rollout_kit.commands import main; main('ng_{name}')"
        (folder / "bin" / f"ng_{name}").write_text(f"#!{sys.executable}\n{script}\n")
        (folder / "bin" / f"ng_{name}").chmod(0o755)
    servers = subprocess.Popen(
        [folder / "bin/ng_run", "+config_paths=[run.yaml]"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = said_until(servers, "servers ready")
        [url] = [
            word
            for line in said.splitlines()
            if line.startswith("my_agent ")
            for word in line.split()
            if "://" in word
        ]
        (folder / "agent_url").write_text(url)
        yield folder
    finally:
        servers.kill()
        servers.communicate()


def _write_rows(folder: Path) -> None:
    rows = (ROOT / "resources_servers/math_with_verify/data/example.jsonl").read_text()
    task = json.loads(rows.splitlines()[0])
    for name, number in {
        **dict.fromkeys(("train", "tasks", "benchmark"), 6),
        **dict.fromkeys(("large_dataset", "huge_dataset"), 40),
    }.items():
        lines = [json.dumps({**task, "number": f"{name} {n}"}) for n in range(number)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def blocks(document: str) -> list[str]:
    return [block.strip() for block in document.split("\n---\n")]


def run(folder: Path, block: str) -> str:
    """Run a block; returns what it said."""
    script = block.replace("10000", "4")
    script = script.replace("http://localhost:8000", (folder / "agent_url").read_text())
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{script}"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "WORKSPACE": str(folder / "machine"),
        },
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def count(folder: Path, name: str) -> int:
    keys = [
        (line["agent_ref"]["name"], line["rollout"]["task_id"], line["rollout"]["rollout_index"])
        for line in read_jsonl(folder / name)
    ]
    assert len(keys) == len(set(keys))
    return len(keys)


@pytest.mark.documents
def test_infrastructure(folder: Path) -> None:
    for tool in ("jq", "awk", "split"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    said = [run(folder, block) for block in blocks(INFRASTRUCTURE)]
    assert count(folder, "rollouts.jsonl") == count(folder, "openai_rollouts.jsonl") == 6
    assert count(folder, "azure_rollouts.jsonl") == 6
    assert count(folder, "rollouts_00.jsonl") == 4
    assert count(folder, "final_rollouts.jsonl") == 40
    assert "Total rollouts: 40" in said[6]
    assert re.search(r"Avg tokens/sample: [1-9]", said[-1])
    [line] = {json.dumps(each["responses_create_params"]) for each in _params(folder)}
    assert {"gpt-4o-mini", 0.3, 512} <= {*json.loads(line).values()}


def _params(folder: Path) -> list[dict[str, Any]]:
    found = read_jsonl(folder / "openai_rollouts.jsonl")
    for each in found:
        each["responses_create_params"].pop("input")
    return found


@pytest.mark.documents
def test_optimization(folder: Path) -> None:
    said = [run(folder, block) for block in blocks(OPTIMIZATION)]
    assert count(folder, "short_rollouts.jsonl") == count(folder, "unverified_rollouts.jsonl") == 6
    assert '"output"' in said[1], "the warm-up is answered without a token"


@pytest.mark.documents
def test_production(folder: Path) -> None:
    (folder / "rollouts_00.jsonl").touch()  # the last block joins files of earlier documents
    said = [run(folder, block) for block in blocks(PRODUCTION)]
    assert "real" in said[0] and count(folder, "benchmark_rollouts.jsonl") == 6
    assert "4 large_rollouts.jsonl" in said[2]
    assert count(folder, "large_rollouts.jsonl") == 40
    assert len(list(folder.glob("huge_chunk_*.jsonl"))) == 10
    metrics = json.loads((folder / "large_rollouts_aggregate_metrics.json").read_text())
    assert {"reward", "accuracy", "avg_tool_calls"} <= metrics.keys()
    code = "ng_collect_rollouts +agent_name=my_agent +input_jsonl_fpath=tasks.jsonl"
    run(folder, f"{code} +output_jsonl_fpath=logged.jsonl +throughput_log=throughput_log.csv")
    assert len((folder / "throughput_log.csv").read_text().splitlines()) == 2
