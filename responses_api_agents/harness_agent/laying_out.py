"""What a program finds when it starts: variables and files."""

from collections.abc import Mapping

from rollout_kit.serving.gateway.door import MCP_PATH, PREFIX
from rollout_kit.serving.sandbox.session.doorway import OUTSIDE

HOME = "/root"
"""In a session. What lies there is no part of the patch."""

LONGEST = 32_000
"""Characters of a task that also stands in a variable: the system limits their length."""


def list_variables(
    token: str, model: str, task: str, home: str = HOME, *, has_tools: bool = False
) -> dict[str, str]:
    """The variables of each program: the address, its key, the model's name, and the task; of one
    that calls tools over MCP, where they are."""
    url = f"{OUTSIDE}{PREFIX}{token}"
    found = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": token,
        "MODEL": model,
        "TASK_FILE": f"{home}/task.txt",
    }
    if has_tools:
        found["MCP_URL"] = f"{url}{MCP_PATH}"
    return {**found, "TASK": task} if len(task) <= LONGEST and "\0" not in task else found


def fill_in(texts: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The texts of the configuration with `$NAME` replaced for each variable but the task."""
    names = sorted((name for name in variables if name != "TASK"), key=len, reverse=True)
    found = dict(texts)
    for place in found:
        for name in names:
            found[place] = found[place].replace(f"${name}", variables[name])
    return found
