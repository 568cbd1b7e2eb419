"""The agent that starts a program of others for each rollout, and gives it an address of its own.

At the address the program finds the model of the run, in the API that it speaks. What it asks and
gets there becomes the response of the rollout.
"""

import asyncio
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollout_kit.errors import ConfigError, RolloutError
from rollout_kit.responses import content_texts, input_items
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.agents.tool_calls import ServerTools
from rollout_kit.serving.gateway.door import Gateway, openai_url
from rollout_kit.serving.gateway.mcp_door import SessionTools
from rollout_kit.serving.gateway.recorder import Recorder
from rollout_kit.serving.gateway.snapshots import Snapshots
from rollout_kit.session import Session, current_session, entered
from rollout_kit.types import JsonObject

from .clients import HarnessClient, HarnessShell
from .config import HarnessAgentConfig
from .laying_out import HOME, fill_in, list_variables
from .outside import OutsidePrograms

GRACE_S = 5.0
"""Time for a program to end by itself once it gets no more answers."""

MAX_SNAPSHOT = 32 << 20
"""Bytes of a compressed snapshot. If one is larger, the one before it stays."""

OF_TASK = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "parallel_tool_calls"}
)
"""Create params of a row that the program decides. All others hold for each of its calls."""

Harness = Callable[[str, HarnessClient, HarnessShell], Awaitable[Any]]


class HarnessAgent(Agent):
    Config = HarnessAgentConfig
    config: HarnessAgentConfig

    def __init__(self, config: HarnessAgentConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        host, port = config.gateway_host, config.gateway_port
        self._gateway = Gateway(host, port, with_mcp=config.outside)
        self._programs = OutsidePrograms()
        self._tools = ServerTools(peers, self.resources, 0) if config.outside else None
        self._harness: Harness | None = None

    async def start(self) -> None:
        if self.config.function:
            self._harness = await asyncio.to_thread(_load, self.name, self.config.function)
        if self.config.outside:
            await self._programs.start()
        await self._gateway.start()

    async def stop(self) -> None:
        await self._gateway.stop()
        await self._programs.stop()

    def describe(self) -> JsonObject:
        return {**super().describe(), "calls_tools": False}

    async def respond(self, params: JsonObject) -> JsonObject:
        sampling = {name: value for name, value in params.items() if name not in OF_TASK}
        limits = self.config.rollout_limits
        snapshots = None
        if self.config.resume_command:
            snapshots = Snapshots(self.config.snapshot_every, self._pack_files)
        recorder = Recorder(
            self.peers, self.model, sampling=sampling, limits=limits, snapshots=snapshots
        )
        token = self._gateway.open(recorder, await self._find_tools(params, recorder))
        try:
            ended = await self._run_until_ended(params, recorder, token)
        finally:
            await self._gateway.close(token)
        if recorder.failure is not None:
            raise recorder.failure
        self._check_started(ended, recorder)
        reason = "time_limit" if ended.get("ended_by") == "time" else "stop"
        response = recorder.finish(self.config.side_calls, self.config.model_name, reason)
        if (session := current_session()) is not None:
            session.stats["harness"] = ended
        return response

    async def _pack_files(self, session: Session) -> str:
        with entered(session):
            asked = {"max_bytes": MAX_SNAPSHOT}
            found = await self.peers.call(self.resources, "/pack_files", asked, dict)
        return found["files_packed"]

    async def _find_tools(self, params: JsonObject, recorder: Recorder) -> SessionTools | None:
        """What a program outside of the session calls: the tools of the row, or of the server."""
        if self._tools is None:
            return None
        offered = params.get("tools") or await self._tools.list_offered()
        return SessionTools(self.peers, self.resources, recorder.session, offered, recorder.fail)

    async def _run_until_ended(
        self, params: JsonObject, recorder: Recorder, token: str
    ) -> JsonObject:
        """How the program ended. Past a limit it has GRACE_S left."""
        program = asyncio.ensure_future(self._run_program(params, token, recorder))
        over = asyncio.ensure_future(recorder.ended.wait())
        try:
            await asyncio.wait({program, over}, return_when=asyncio.FIRST_COMPLETED)
            if not program.done():
                await asyncio.wait({program}, timeout=GRACE_S)
            if not program.done():
                return {"status": None, "ended_by": recorder.reached or "failure"}
            return program.result()
        finally:
            over.cancel()
            program.cancel()
            await asyncio.gather(over, program, return_exceptions=True)

    async def _run_program(self, params: JsonObject, token: str, recorder: Recorder) -> JsonObject:
        task = read_task(params)
        if self._harness is not None:
            return await self._call(self._harness, task, token, recorder)
        if not self.config.outside:
            asked = self._describe_program(token, task)
            if recorder.files:
                asked["command"] = self.config.resume_command
                asked["files_packed"], recorder.files = recorder.files, ""
            return await self.peers.call(self.resources, "/run_program", asked, dict)
        async with self._programs.room() as room:
            return await room.run(self._describe_program(token, task, room.home))

    def _describe_program(self, token: str, task: str, home: str = HOME) -> JsonObject:
        config = self.config
        variables = list_variables(token, config.model_name, task, home, has_tools=config.outside)
        host, port = self._gateway.address
        return {
            "command": config.command,
            "host": host,
            "port": port,
            "environment": {**variables, **fill_in(config.environment, variables)},
            "files": {**fill_in(config.files, variables), variables["TASK_FILE"]: task},
            "time_limit_s": config.time_limit_s,
            "output_bytes": config.output_bytes,
        }

    async def _call(
        self, harness: Harness, task: str, token: str, recorder: Recorder
    ) -> JsonObject:
        url = openai_url(self._gateway.address, token)
        client = HarnessClient(recorder, url, token, self.config.model_name)
        try:
            async with asyncio.timeout(self.config.time_limit_s):
                found = await harness(task, client, HarnessShell(self.peers, self.resources))
        except TimeoutError:
            return {"status": None, "ended_by": "time"}
        except RolloutError:
            raise
        except Exception as error:
            if recorder.ended.is_set():  # it was refused an answer
                return {"status": 1, "ended_by": "", "stderr": repr(error)[:500]}
            raise
        said = "" if found is None else str(found)
        return {"status": 0, "ended_by": "", "stdout": said[: self.config.output_bytes]}

    def _check_started(self, ended: JsonObject, recorder: Recorder) -> None:
        """RolloutError if the program failed before the model has answered it."""
        has_asked = len(recorder.calls) > recorder.num_restored
        if has_asked or recorder.reached or ended["ended_by"] or not ended["status"]:
            return
        said = "\n".join(filter(None, (ended.get("stdout"), ended.get("stderr"))))
        why = (
            f"after the model refused its request: {recorder.refusal}. It printed"
            if recorder.refusal
            else "before it asked the model"
        )
        raise RolloutError(
            f"the program ended with status {ended['status']} {why}: {said.strip()[-1000:]}",
            server=self.name,
            retryable=False,
        )


def read_task(params: JsonObject) -> str:
    """What the user of a row asks: the system prompt is that of the program."""
    texts = [
        "".join(content_texts(item.get("content")))
        for item in input_items(params)
        if item.get("role") == "user"
    ]
    return "\n\n".join(texts)


def _load(name: str, place: str) -> Harness:
    path, _, function = place.rpartition(":")
    if not path or not Path(path).is_file():
        raise ConfigError(f"{name}: function: there is no file {path or place!r}; write FILE:NAME")
    found = runpy.run_path(path).get(function)
    if not callable(found):
        raise ConfigError(f"{name}: function: {path} has no function '{function}'")
    return found
