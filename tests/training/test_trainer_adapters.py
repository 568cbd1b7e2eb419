"""Own classes of verl, AReaL, OpenRLHF and SkyRL on our servers; the tiny model plays the engines.
`make trainers` installs them in environments of their own, `make test-trainers` runs this."""

import ast
import asyncio
import json
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_engine import CHECKPOINT, PlayedEngine

from rollout_kit import load
from rollout_kit.rl import read_group
from rollout_kit.rl.rows import TrainingRow

DATA = CHECKPOINT.parent / "data"
CONFIGS = [
    "responses_api_models/trainer_model/configs/trainer_model.yaml",
    "resources_servers/math_with_verify/configs/math_with_verify.yaml",
    "resources_servers/calculator/configs/calculator.yaml",
]

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read_tasks() -> list[Any]:
    """Sums, tasks with a tool, and one of them twice."""
    found = []
    for name in ("arithmetic", "tool"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        found += [json.loads(line) for line in lines[:3]]
    return [*found, found[0]]


def read_rows(folder: Path) -> Iterator[TrainingRow]:
    """The rows to train on of what the adapter has stored; each rollout is one."""
    for rollout in load(next(folder.glob("rollouts_*.jsonl"))):
        [row] = read_group([rollout]).rows
        yield row


def test_verl_gets_what_is_stored(tmp_path: Path) -> None:
    """Its data set, its base class and its worker's post-processing."""
    pytest.importorskip("verl")
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.experimental.agent_loop import agent_loop as theirs
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
    from verl.workers.rollout.replica import TokenOutput

    from rollout_kit.rl.adapters.verl import RolloutAgentLoop, verl_row

    tokenizer, played = AutoTokenizer.from_pretrained(CHECKPOINT), PlayedEngine()
    lines = [json.dumps(verl_row(row, at)) for at, row in enumerate(read_tasks())]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    data = OmegaConf.create({"max_prompt_length": 512, "cache_dir": str(tmp_path)})
    dataset = RLHFDataset(str(tmp_path / "train.jsonl"), tokenizer, data)
    batch = collate_fn([dataset[at] for at in range(len(dataset))])
    rollout = {"prompt_length": 512, "response_length": 256}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})

    class Client:
        """verl's client of its inference servers."""

        async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: Any) -> Any:
            assert sampling_params["logprobs"] and sampling_params["top_p"] == 0.99
            made = await played.generate(prompt_ids, sampling_params, request_id)
            assert made.versions
            first, last = made.versions
            fields = {"global_steps": last, "min_global_steps": first, "max_global_steps": last}
            return TokenOutput(
                token_ids=made.token_ids,
                log_probs=made.log_probs,
                stop_reason="completed",
                extra_fields=fields,
            )

    async def main() -> list[Any]:
        client, found = Client(), []

        async def run(at: int) -> Any:
            loop = RolloutAgentLoop(
                trainer_config=theirs.DictConfigWrap(config),
                server_manager=client,
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=RLHFDataset,
                data_config=theirs.DictConfigWrap(data),
                hf_model_type="qwen3",
                tools=theirs.ToolListWrap([]),
                config_paths=CONFIGS,
                output_dir=str(tmp_path / "rollouts"),
            )
            sampling = {"temperature": 1.0, "top_p": 0.99, "top_k": -1, "logprobs": False}
            return await loop.run(sampling, **{name: each[at] for name, each in batch.items()})

        found = await asyncio.gather(*map(run, range(len(dataset))))
        await RolloutAgentLoop._runs[client].close()
        return found

    given = [each.as_dict() for each in asyncio.run(main())]
    assert list(given) and all("rollout_log_probs" in each for each in given)
    told = [
        (
            [*one["prompts"].tolist(), *one["responses"].tolist()],
            one["response_mask"].tolist(),
            pytest.approx(one["rollout_log_probs"].tolist(), abs=1e-6),
            one["rm_scores"].sum().item(),
            one["extra_fields"]["min_global_steps"],
        )
        for one in given
    ]
    assert len(told) == 7
    for row in read_rows(tmp_path / "rollouts"):
        start = row.mask.index(1)
        first = min(each for each in row.versions if each >= 0)
        assert (row.token_ids, row.mask[start:], row.log_probs[start:], row.reward, first) in told
    assert any(0 in one[1] for one in told), "no rollout has a tool's output"


def test_areal_gets_what_is_stored(tmp_path: Path) -> None:
    """Its base class, and the requests and responses of its engine."""
    pytest.importorskip("areal")
    import torch
    from areal.api.cli_args import GenerationHyperparameters
    from areal.api.io_struct import ModelResponse
    from transformers import AutoTokenizer

    from rollout_kit.rl.adapters.areal import RolloutKitWorkflow

    tokenizer, played = AutoTokenizer.from_pretrained(CHECKPOINT), PlayedEngine()

    class Engine:
        async def agenerate(self, request: Any) -> Any:
            asked = request.gconfig
            sampling = {"temperature": asked.temperature, "max_tokens": asked.max_new_tokens}
            made = await played.generate(request.input_ids, sampling, request.rid)
            assert made.versions
            first, last = made.versions
            return ModelResponse(
                input_tokens=request.input_ids,
                output_tokens=made.token_ids,
                output_logprobs=made.log_probs,
                output_versions=[first] + [last] * (len(made.token_ids) - 1),
                stop_reason=made.finish_reason,
            )

    async def main() -> list[Any]:
        gconfig = GenerationHyperparameters(max_new_tokens=96)
        workflow = RolloutKitWorkflow(gconfig, tokenizer, CONFIGS, output_dir=tmp_path)
        engine = Engine()
        runs = [workflow.arun_episode(engine, {"row": json.dumps(row)}) for row in read_tasks()]
        found = await asyncio.gather(*runs)
        await workflow._run.close()
        return found

    told = []
    for each in asyncio.run(main()):
        assert {name: value.shape[0] for name, value in each.items()} == dict.fromkeys(each, 1)
        assert bool(torch.all(each["attention_mask"]))
        told.append(
            (
                each["input_ids"][0].tolist(),
                each["loss_mask"][0].tolist(),
                pytest.approx(each["logprobs"][0].tolist(), abs=1e-6),
                each["versions"][0].tolist(),
                each["rewards"][0].item(),
            )
        )
    assert len(told) == 7
    for row in read_rows(tmp_path):
        assert (row.token_ids, row.mask, row.log_probs, row.versions, row.reward) in told


def test_openrlhf_gets_what_is_stored(tmp_path: Path) -> None:
    """Its data set, its base class, and what its trainer makes of the answer."""
    pytest.importorskip("openrlhf")
    from openrlhf.datasets import PromptDataset
    from transformers import AutoTokenizer

    from rollout_kit.rl.adapters.openrlhf import RolloutAgentExecutor

    tokenizer, played = AutoTokenizer.from_pretrained(CHECKPOINT), PlayedEngine()

    class Engine:
        """OpenRLHF's actor around vLLM."""

        async def generate(self, prompt: Any, sampling: Any, multi_modal_data: Any = None) -> Any:
            asked = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
            made = await played.generate(prompt, asked, "")
            log_probs = [
                {one: SimpleNamespace(logprob=log_prob)}
                for one, log_prob in zip(made.token_ids, made.log_probs, strict=True)
            ]
            output = SimpleNamespace(
                token_ids=made.token_ids, logprobs=log_probs, finish_reason=made.finish_reason
            )
            return SimpleNamespace(outputs=[output])

    class AgentExecutor(RolloutAgentExecutor):
        config_paths = CONFIGS
        output_dir = str(tmp_path / "rollouts")

    keys = SimpleNamespace(
        input_key="input", label_key="label", apply_chat_template=True, image_key="images"
    )
    args = SimpleNamespace(data=keys)
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    rows = [
        {"input": row["responses_create_params"]["input"], "label": json.dumps(row)}
        for row in read_tasks()
    ]
    dataset = PromptDataset(rows, tokenizer, strategy)
    sampling = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=96, logprobs=1)

    async def main() -> list[Any]:
        executor = AgentExecutor()

        async def run(at: int) -> Any:
            _, prompt, label, _ = dataset[at]
            return await executor.execute(prompt, label, sampling, 512, tokenizer, Engine())

        found = await asyncio.gather(*map(run, range(len(dataset))))
        assert executor._run
        await executor._run.close()
        return found

    process = openrlhf_processing()
    told = []
    for answer in asyncio.run(main()):
        experience = process(SimpleNamespace(args=args), answer, max_len=512)
        told.append(
            (
                experience.sequences[0].tolist(),
                experience.action_mask[0].tolist(),
                pytest.approx(experience.rollout_log_probs[0].tolist(), abs=1e-6),
                experience.rewards[0].item(),
            )
        )
    assert len(told) == 7
    for row in read_rows(tmp_path / "rollouts"):
        # their mask and log-probs are those of the next token
        assert (row.token_ids, row.mask[1:], row.log_probs[1:], row.reward) in told
        assert set(row.versions) == {-1}


def test_skyrl_gets_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its base class, the input that it makes, and the batch that it makes of the output."""
    pytest.importorskip("skyrl")
    import typing_extensions

    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)  # for Python 3.11
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.generators.utils import prepare_generator_input
    from transformers import AutoTokenizer

    from rollout_kit.rl.adapters.skyrl import RolloutGenerator

    tokenizer, played = AutoTokenizer.from_pretrained(CHECKPOINT), PlayedEngine()

    class Client:
        """SkyRL's client of its inference engines."""

        async def generate(self, asked: Any) -> Any:
            sampling = asked["sampling_params"]
            assert sampling["top_p"] == 0.99 and sampling["logprobs"] == 1
            assert sampling["max_tokens"] == 96 and "max_output_tokens" not in sampling
            [prompt], [session] = asked["prompt_token_ids"], asked["session_ids"]
            made = await played.generate(prompt, sampling, session)
            return {
                "responses": [tokenizer.decode(made.token_ids)],
                "response_ids": [made.token_ids],
                "stop_reasons": [made.finish_reason],
                "response_logprobs": [made.log_probs],
            }

    prompts = [
        {
            "prompt": row["responses_create_params"]["input"],
            "env_class": "any",
            "env_extras": {"row": json.dumps(row)},
            "uid": str(number),
        }
        for number, row in enumerate(read_tasks())
    ]
    sampling = {"temperature": 1.0, "top_p": 0.99, "top_k": -1, "min_p": 0.0, "logprobs": 1}
    sampling["max_tokens"] = 96
    asked, uids = prepare_generator_input(prompts, 1, sampling, "any", "train", 0)

    async def main() -> Any:
        generator = RolloutGenerator(Client(), tokenizer, CONFIGS, output_dir=tmp_path)
        found = await generator.generate(asked)
        await generator.run.close()
        return found

    made = asyncio.run(main())
    assert [each.instance_id for each in made["trajectory_ids"]] == uids
    rewards = [
        [0.0] * (len(ids) - 1) + [reward]
        for ids, reward in zip(made["response_ids"], made["rewards"], strict=True)
    ]
    parts = [made[name] for name in ("prompt_token_ids", "response_ids")]
    more = [made[name] for name in ("loss_masks", "rollout_logprobs")]
    batch = convert_prompts_responses_to_batch_tensors(tokenizer, *parts, rewards, *more)
    told = []
    for ids, attention, _, reward, mask, log_probs in zip(*batch[:6], strict=True):
        size = len(made["response_ids"][len(told)])
        told.append(
            (
                ids[attention.bool()].tolist(),
                [int(each) for each in mask[-size:].tolist()],
                pytest.approx(log_probs[-size:].tolist(), abs=1e-6),
                reward.sum().item(),
            )
        )
    assert len(told) == 7
    for row in read_rows(tmp_path):
        start = row.mask.index(1)
        assert (row.token_ids, row.mask[start:], row.log_probs[start:], row.reward) in told
    assert any(0 in one[1] for one in told), "no rollout has a tool's output"


def openrlhf_processing() -> Any:
    """`_process_response_into_experience` out of its source: its module imports vLLM."""
    import openrlhf
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience

    path = Path(openrlhf.__path__[0], "trainer/ppo_utils/samples_generator.py")
    name = "_process_response_into_experience"
    [found] = [each for each in _functions(ast.parse(path.read_text())) if each.name == name]
    names: dict[str, Any] = {"torch": torch, "Experience": Experience}
    exec(compile(ast.Module([found], []), str(path), "exec"), names)
    return names[name]


def _functions(tree: ast.Module) -> Iterable[ast.FunctionDef]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
