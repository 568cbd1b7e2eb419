"""A stored run of every shipped environment, verified again by its own configuration alone."""

import asyncio
import io
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support import config_of, read_jsonl, write_jsonl
from test_every_server import ENVIRONMENTS, examples

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.reverify import reverify
from rollout_kit.config.instances import Instance
from rollout_kit.config.keys import ReverifyConfig
from rollout_kit.config.load import load
from rollout_kit.config.verification import verifier_of
from rollout_kit.errors import ConfigError
from rollout_kit.launch.reach import Servers
from rollout_kit.responses import input_items, make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.store.rollouts import load as load_rollouts
from rollout_kit.types import JsonObject

AGENTS = "responses_api_agents"
A_JUDGE = "responses_api_models/simulated_model/configs/simulated_model.yaml"


def is_answer(item: JsonObject) -> bool:
    """Of a tool, or of a game: it ends a turn of the policy."""
    return item.get("type") == "function_call_output" or item.get("role") == "user"


def turns_of(items: list[JsonObject]) -> list[list[JsonObject]]:
    """What the policy said, turn by turn."""
    return [list(turn) for answered, turn in groupby(items, key=is_answer) if not answered]


def gold_of(row: JsonObject) -> list[list[JsonObject]]:
    return turns_of(row.get("gold_items") or [message_item(row.get("gold_output") or "none")])


JUDGED = ("graded_answers", "rubric_judge")

OF_A_JUDGE = '[[A!=B]] {"score_1": 3, "score_2": 3, "ranking": 3.5}'
"""No two answers are equal, and all are as good."""


def policy(rows: list[JsonObject]) -> Any:
    """Gives the gold answer first, and a wrong one when it is asked again. As a judge it finds no
    two answers equal, and all as good."""
    gold = [(input_items(row["responses_create_params"]), gold_of(row)) for row in rows]

    def answer(params: JsonObject) -> JsonObject:
        given = input_items(params)
        for items, turns in gold:
            if given[: len(items)] == items:
                said = len(turns_of(given[len(items) :]))
                if params["seed"] != 0 or said >= len(turns):
                    return make_response("m", [message_item("I would rather not say.")], None)
                return make_response("m", turns[said], None)
        return make_response("m", [message_item(OF_A_JUDGE)], None)

    return answer


async def collected(name: str, agent: Instance, folder: Path) -> str:
    """Two rollouts of each example, a right and a wrong one, into `rollouts.jsonl`; what the server
    says of verifying them again."""
    rows = write_jsonl(folder / "tasks.jsonl", examples(name))
    wiring = {"resources_server": {"name": name}, "model_server": {"name": "policy_model"}}
    servers = {
        "policy_model": lambda peers, _: ScriptedModel(policy(read_jsonl(rows)), peers),
        name: making(registry.load("resources_servers", name)),
        agent.name: making(
            registry.load(AGENTS, agent.implementation), **{**agent.settings, **wiring}
        ),
    }
    async with mount(servers) as peers:
        progress = Progress(out=io.StringIO(), err=io.StringIO())
        config = config_of(folder, num_repeats=2, num_repeats_add_seed=True)
        assert (
            await collect_through(Servers(peers, [agent.name], {}, {}), config, [], progress) == 0
        )
        return (await peers.describe(name))["reverify"]


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name not in JUDGED])
def test_its_own_configuration_verifies_a_stored_run_to_the_same_rewards(
    name: str, tmp_path: Path
) -> None:
    """All but JUDGED: only the judge counts, which here says the same of all answers."""
    argv = [
        f"+config_paths=[resources_servers/{name}/configs/{name}.yaml,{A_JUDGE}]",
        "++policy_model.responses_api_models.simulated_model.answer=text",
        f"++policy_model.responses_api_models.simulated_model.text='{OF_A_JUDGE}'",
        f"+input_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
        f"+output_jsonl_fpath={tmp_path / 'new.jsonl'}",
    ]
    config = load(argv, ReverifyConfig)
    agents = [each for each in config.instances.values() if each.type == AGENTS]
    agent = next(each for each in agents if verifier_of(each) == name)
    mode = asyncio.run(collected(name, agent, tmp_path))
    stored = read_jsonl(tmp_path / "rollouts.jsonl")
    out = io.StringIO()
    again = reverify(config, argv, Progress(out=out, err=io.StringIO()))
    if mode == "never":
        with pytest.raises(ConfigError, match="reverify: never"):
            asyncio.run(again)
        return
    assert asyncio.run(again) == 0, out.getvalue()
    rewards, groups = (
        [
            {rollout.key: getattr(rollout, which) for rollout in load_rollouts(tmp_path / each)}
            for each in ("rollouts.jsonl", "new.jsonl")
        ]
        for which in ("reward", "group_reward")
    )
    assert rewards[0] == rewards[1] and len(rewards[0]) == 2 * len(examples(name))
    assert groups[0] == groups[1]
    if registry.load("resources_servers", name).verify is ResourcesServer.verify:
        assert None not in groups[0].values()
        return
    assert 1.0 in rewards[0].values() and min(rewards[0].values()) < 1.0
    assert f"({len(stored)} up to date)" in out.getvalue()
    assert f"0 up, 0 down, {len(stored)} the same" in out.getvalue()
