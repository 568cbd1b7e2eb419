"""Verdicts of NeMo Gym's own servers, for `nemo_gym.py`: runs under their interpreter.

Reads lines of JSON with `server`, `row` and `answer` from standard input, and writes a line with
the reward, or with the error, for each. A line may have a whole `response` in place of the answer,
and `settings` of the server.
"""

import asyncio
import contextlib
import importlib.util
import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import ServerClient

FOLDERS = {"math_with_verify": "math_with_judge"}
"""Our name → theirs, where they differ."""

SETTINGS: dict[str, dict[str, Any]] = {
    "math_with_verify": {
        "judge_model_server": {"type": "responses_api_models", "name": "judge"},
        "judge_responses_create_params": {"input": []},
        "should_use_judge": False,
    },
    "code_gen": {"num_processes": 2, "unit_test_timeout_secs": 10, "debug": False},
}


SESSION = "s"

REQUIRED = {"responses_create_params": {"input": "?"}, "id": 0, "question": "?", "prompt": "?"}
"""Fields that their rows must have and that do not affect a verdict."""

UNREAD = "Error processing instruction"
"""What `instruction_following` prints when a check fails, for example without nltk's data. The
instruction then counts as not followed."""

BY_CONFIG = "lenient_answer_colon_md"
"""A mode that a row of theirs cannot ask for, but their configuration can."""


def make(name: str, **more: Any) -> tuple[Any, Any]:
    """A server, and the type of its requests."""
    path = f"resources_servers.{FOLDERS.get(name, name)}.app"
    spec = importlib.util.find_spec(path)
    assert spec is not None and spec.origin is not None
    sys.path.insert(0, str(Path(spec.origin).parent))  # they import their neighbours by name
    module = importlib.import_module(path)
    own = [each for each in vars(module).values() if isinstance(each, type)]
    own = [each for each in own if each.__module__ == module.__name__]
    [server] = [each for each in own if issubclass(each, SimpleResourcesServer)]
    config = server.model_fields["config"].annotation
    found = {
        "host": "",
        "port": 0,
        "entrypoint": "",
        "name": name,
        **SETTINGS.get(name, {}),
        **more,
    }
    request = server.verify.__annotations__["body"]
    return server(config=config(**found), server_client=MagicMock(spec=ServerClient)), request


def build_session_request(verify: Any) -> dict[str, Any]:
    """The request around the body, where a server wants its session."""
    has_request = "request" in verify.__annotations__
    request = MagicMock(session=defaultdict(lambda: SESSION))
    return {"request": request} if has_request else {}


def build_response(answer: str) -> dict[str, Any]:
    content = [{"annotations": [], "text": answer, "type": "output_text"}]
    message = {"id": "m", "role": "assistant", "status": "completed", "type": "message"}
    return {
        "id": "r",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": [{**message, "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


async def main() -> None:
    servers: dict[tuple[str, ...], Any] = {}
    for raw in sys.stdin:
        case = json.loads(raw)
        name, row = case["server"], case["row"]
        more = dict(case.get("settings") or {})
        if row.get("grading_mode") == BY_CONFIG:
            more["grading_mode"] = BY_CONFIG
        try:
            if (name, *more) not in servers:
                servers[name, *more] = make(name, **more)
            server, request = servers[name, *more]
            row = {key: value for key, value in row.items() if key not in more}
            asked = {**REQUIRED, **row}
            response = case.get("response") or build_response(case["answer"])
            body = request.model_validate({**asked, "response": response})
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                found = await server.verify(**build_session_request(server.verify), body=body)
            line: dict[str, Any] = {"reward": float(found.reward)}
            if UNREAD in printed.getvalue():
                line = {"error": " ".join(printed.getvalue().split())[:300]}
        except Exception as error:
            text = f"{type(error).__name__}: {error}".replace("\n", " ")
            line = {"error": text[:200]}
        print(f"VERDICT {json.dumps(line)}", flush=True)


asyncio.run(main())
