"""verifiers 0.4: multiple choice, one turn, through a harness in the evaluator's own process.

Its built-in single-turn harness starts a Python process per rollout; this one uses aiohttp in the
same process, the minimum that its interface allows.
"""

import json
import os
import re

import aiohttp
import verifiers.v1 as vf

__all__ = ["ChoiceHarness", "ChoiceTaskset"]

BOXED = re.compile(r"\\boxed\{([A-D])\}")


class ChoiceData(vf.TaskData):
    answer: str = ""


class ChoiceTask(vf.Task[ChoiceData]):
    @vf.reward(weight=1.0)
    async def is_right(self, trace: vf.Trace) -> float:
        found = BOXED.findall(trace.last_reply)
        return float(bool(found) and found[-1] == self.data.answer)


class ChoiceTaskset(vf.Taskset[ChoiceTask, vf.TasksetConfig]):
    def load(self):
        with open(os.environ["BENCH_ROWS"]) as stream:
            for line in stream:
                row = json.loads(line)
                prompt = row["responses_create_params"]["input"][0]["content"]
                data = ChoiceData(prompt=prompt, answer=row["expected_answer"])
                yield ChoiceTask(data, self.config.task)


class ChoiceHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False
    http: aiohttp.ClientSession | None = None

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        if ChoiceHarness.http is None:
            connector = aiohttp.TCPConnector(limit=0)
            ChoiceHarness.http = aiohttp.ClientSession(connector=connector)
        body = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        headers = {"authorization": f"Bearer {secret}"}
        url = f"{endpoint}/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as reply:
            text = await reply.text()
        return vf.ProgramResult(int(reply.status != 200), text, "")
