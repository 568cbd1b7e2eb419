"""Programs that tests start in sessions, with nothing but the standard library."""

LOOP = """
import json, os, subprocess, sys, urllib.request

def ask(messages, tools=True, stream=False, **more):
    body = {"model": os.environ["MODEL"], "messages": messages, "stream": stream, **more}
    if tools:
        run = {"name": "bash", "parameters": {"type": "object",
               "properties": {"command": {"type": "string"}}, "required": ["command"]}}
        body["tools"] = [{"type": "function", "function": run}]
    raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"content-type": "application/json",
               "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, raw, headers), timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]

def loop(task):
    messages = [{"role": "system", "content": "You are a small harness."},
                {"role": "user", "content": "Task: " + task}]
    while True:
        said = ask(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            out = done.stdout + done.stderr
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": out})
"""

RESUMABLE = LOOP.replace(
    """
    while True:
        said = ask(messages)
""",
    """
    if sys.argv[1:] == ["resume"]:
        messages = json.load(open("/root/state.json"))
    while True:
        json.dump(messages, open("/root/state.json", "w"))
        said = ask(messages)
""",
)
"""The same, which keeps its conversation in a file, and continues there with `resume`."""

RESUMABLE_HARNESS = RESUMABLE + 'print(loop(os.environ["TASK"]))\n'

SMALL_HARNESS = LOOP + 'print(loop(os.environ["TASK"]))\n'

MCP_HARNESS = (
    LOOP
    + """
import asyncio
from mcp import Client

async def main():
    messages = [{"role": "user", "content": open(os.environ["TASK_FILE"]).read()}]
    async with Client(os.environ["MCP_URL"]) as shell:
        names = [tool.name for tool in (await shell.list_tools()).tools]
        assert "exec" in names and "verify" not in names, names
        while True:
            said = await asyncio.to_thread(ask, messages)
            messages.append(said)
            if not said.get("tool_calls"):
                return said["content"]
            for call in said["tool_calls"]:
                asked = json.loads(call["function"]["arguments"])
                done = await shell.call_tool("exec", asked)
                text = "".join(part.text for part in done.content)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

print(asyncio.run(main()), os.environ["HOME"], os.getcwd())
"""
)
"""A program outside of the session, which works there over MCP."""
