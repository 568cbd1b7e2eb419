"""Have shipped verifiers judge hostile answers and rows, after harmless ones of the same lengths.

python judged.py < specification, as `tests/servers/test_nothing_is_evaluated.py` writes it. What
happens meanwhile is in the log of `audit_hook`, to which this adds the beginning of each phase.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.errors import RolloutKitError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.serving.agent import open_session
from rollout_kit.session import Session

CALL = {"type": "function_call", "id": "f", "call_id": "c", "status": "completed"}

JUDGED = {"judge_model_server", "genrm_model_server"}
"""Keys of verifiers that ask a model."""


def say(phase: str) -> None:
    with open(os.environ["PYTHONAUDITLOG"], "a") as log:
        log.write(json.dumps({"phase": phase}) + "\n")


async def judge(name: str, settings: dict[str, Any], phases: dict[str, list[Any]]) -> None:
    server = registry.load("resources_servers", name)
    asked = {
        key: {"type": "responses_api_models", "name": "judge"}
        for key in JUDGED & server.Config.model_fields.keys()
    }
    if "num_verify_workers" in server.Config.model_fields:
        settings = {"num_verify_workers": 1, "verify_timeout_s": 60, **settings}
    servers = {
        "judge": lambda peers, name: ScriptedModel(lambda body: "they agree: [[A=B]]"),
        name: making(server, **asked, **settings),
    }
    async with mount(servers) as peers:
        for phase, pairs in phases.items():
            say(f"{name} {phase}")
            for row, answer in pairs:
                # a row may be refused, and an answer may be too odd for a tool
                with suppress(RolloutKitError):
                    async with open_session(peers, name, Session()):
                        await peers.call(name, "/seed_session", row, dict)
                        items = [answer] if isinstance(answer, dict) else [message_item(answer)]
                        response = make_response("m", items, None)
                        await peers.call(name, "/verify", {**row, "response": response}, dict)
        say("end")


async def main() -> None:
    for spec in json.load(sys.stdin):
        await judge(spec["name"], spec["settings"], spec["phases"])


asyncio.run(main())
