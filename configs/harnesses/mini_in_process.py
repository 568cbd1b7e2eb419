"""mini-swe-agent as a function: its loop runs in this process, and its commands in the session."""

import asyncio
import platform
from pathlib import Path
from typing import Any

import litellm
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


async def run(task: str, client: Any, shell: Any) -> str:
    """How it ended."""
    litellm.suppress_debug_info = True
    loop = asyncio.get_running_loop()

    class SessionEnvironment(LocalEnvironment):
        def execute(self, action: dict[str, Any], cwd: str = "", **_: Any) -> dict[str, Any]:
            command = action.get("command", "")
            asked = asyncio.run_coroutine_threadsafe(shell.exec(command), loop)
            text, _, end = asked.result().rpartition("[exit status ")
            status = end.rstrip("]")
            known = int(status) if status.lstrip("-").isdigit() else -1
            found = {"output": text if status else end, "returncode": known, "exception_info": ""}
            self._check_finished(found)
            return found

        def get_template_vars(self, **more: Any) -> dict[str, Any]:
            return {**platform.uname()._asdict(), **more}

    settings = read_settings()
    kept = {name: settings["agent"][name] for name in ("system_template", "instance_template")}
    reached = {"api_base": client.base_url, "api_key": client.api_key}
    model = LitellmModel(
        model_name=f"openai/{client.model}",
        model_kwargs={**settings["model"].get("model_kwargs", {}), **reached},
        cost_tracking="ignore_errors",
        observation_template=settings["model"]["observation_template"],
        format_error_template=settings["model"]["format_error_template"],
    )
    agent = DefaultAgent(model, SessionEnvironment(), **kept)
    ended = await asyncio.to_thread(agent.run, task)
    return str(ended.get("exit_status", ""))


def read_settings() -> dict[str, Any]:
    """Those that mini-swe-agent ships."""
    return yaml.safe_load(Path(builtin_config_dir, "mini.yaml").read_text())
