"""The tasks of τ²-bench from the wheel of inspect_evals, whose files are only parsed."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from ....errors import ConfigError
from ....responses import function_call_item, message_item
from ....types import JsonObject

ROOT = "inspect_evals/tau2/data"

AGENT = """\
<instructions>
    You are a customer service agent that helps the user according to the <policy> provided below.
    In each turn you can either:
    - Send a message to the user.
    - Make a tool call.
    You cannot do both at the same time.

    Try to be helpful and always follow the policy. Always make sure you generate valid JSON only.
    </instructions>
    <policy>
{policy}
</policy>
"""
"""What inspect_evals tells the agent, with its indentation."""

USER = """\
{guidelines}
<scenario>
{scenario}
</scenario>
"""

ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")

PARTS = {
    "domain": "Domain: {}",
    "reason_for_call": "Reason for call:\n{}",
    "known_info": "Known info:\n{}",
    "unknown_info": "Unknown info:\n{}",
    "task_instructions": "Task instructions:\n{}",
}


def read_tau2(wheel: Path, desk: str) -> Iterator[JsonObject]:
    """The tasks of a desk, `airline` or `retail`, of the split that inspect_evals runs."""
    if desk not in ("airline", "retail"):
        raise ConfigError(f"source.desk: {desk!r} is neither airline nor retail")
    with zipfile.ZipFile(wheel) as archive:
        folder = f"{ROOT}/domains/{desk}"
        policy = archive.read(f"{folder}/policy.txt").decode()
        guide = archive.read(f"{ROOT}/user_simulator/simulation_guidelines.txt").decode()
        wanted = {*json.loads(archive.read(f"{folder}/split_tasks.json"))["base"]}
        for task in json.loads(archive.read(f"{folder}/tasks.json")):
            if task["id"] in wanted:
                yield _make_task(task, AGENT.format(policy=policy), guide)


def _make_task(task: JsonObject, instructions: str, guide: str) -> JsonObject:
    scenario, criteria = task["user_scenario"], task["evaluation_criteria"]
    actions = [
        {name: each[name] for name in ("name", "arguments", "compare_args") if name in each}
        for each in criteria["actions"] or ()
    ]
    basis = {"reward_basis": criteria["reward_basis"]} if "reward_basis" in criteria else {}
    informed = criteria.get("communicate_info") or []
    return {
        "id": task["id"],
        "responses_create_params": {"input": [{"role": "system", "content": instructions}]},
        "user": {
            "goal": _describe_goal(scenario["instructions"]),
            "instructions": USER.format(guidelines=guide, scenario=describe_scenario(scenario)),
            "ends": [*ENDS],
        },
        "actions": actions,
        "communicate_info": informed,
        "nl_assertions": criteria.get("nl_assertions") or [],
        **basis,
        "gold_items": _make_gold(actions, informed),
    }


def _describe_goal(instructions: JsonObject | str) -> str:
    return instructions if isinstance(instructions, str) else instructions["reason_for_call"]


def describe_scenario(scenario: JsonObject) -> str:
    """What a model that plays the user is told of its task."""
    lines, instructions = list[str](), scenario["instructions"]
    if scenario.get("persona") is not None:
        lines += ["Persona:", indent(scenario["persona"], "\t")]
    if not isinstance(instructions, str):
        instructions = "\n".join(
            form.format(
                instructions[name] if name == "domain" else indent(instructions[name], "\t")
            )
            for name, form in PARTS.items()
            if instructions.get(name) is not None
        )
    return "\n".join([*lines, "Instructions:", indent(instructions, "\t")])


def _make_gold(actions: list[JsonObject], informed: list[str]) -> list[JsonObject]:
    """A response that makes the right calls, and then says what has to be said."""
    items: list[JsonObject] = []
    for number, action in enumerate(actions):
        name = f"call_{number}"
        items.append(function_call_item(action["name"], json.dumps(action["arguments"]), name))
        items.append({"type": "function_call_output", "call_id": name, "output": ""})
    return [*items, message_item(" ".join(["Done.", *informed]))]
