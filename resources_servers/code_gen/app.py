"""Programs and functions that the policy wrote, verified by unit tests in LiveCodeBench's format.

Each test is a run of its own in the sandbox. What a test expects never goes in there: outputs and
returned values are compared out here.
"""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    Sandbox,
    SandboxError,
    SandboxLimits,
    SandboxRun,
    VerifyError,
    VerifyRequest,
    VerifyResponse,
    output_text,
)
from rollout_kit.serving.service import OPERATIONAL

from .extraction import code_of, is_reasoning_misplaced
from .rows import Case, Metadata, cases_of
from .rules import Judgement, judged

LARGE = 1 << 16
"""Bytes of output from which it is compared in a thread: a few milliseconds' work."""

SPARE_OUTPUT = 1 << 20
"""Bytes that a program may print beyond twice what is expected."""

STARVED = 0.5
"""A test that ran into its time limit with less CPU than this share of it is run once more."""


class CodeGenConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    num_processes: int = Field(
        8,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Tests that run at the same time, each in a warm process of 15 MB.",
    )
    unit_test_timeout_secs: float = Field(10.0, gt=0, description="Most time for one test.")
    unit_test_memory_mb: int = Field(
        1024, ge=64, description="Most memory for one test, all its processes together."
    )
    reasoning_format_penalty: float = Field(
        0.0, description="The reward where think tags stand in the answer, whatever the code does."
    )
    num_fast_tests: int = Field(3, ge=1, description="With fast_mode, only so many tests are run.")
    packages_dir: Path | None = Field(
        None, description="A folder that code may import from, filled by pip install --target."
    )
    unsafe_code: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Run code even where the sandbox cannot hold it.",
    )


class CodeGenRequest(VerifyRequest):
    verifier_metadata: Metadata


class CodeGen(ResourcesServer):
    """Reward 1.0 when every test passes, else 0.0."""

    Config = CodeGenConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"unit_tests_time_taken"})

    def __init__(self, config: CodeGenConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        folders = [config.packages_dir] if config.packages_dir else []
        self._sandbox = Sandbox(config.num_processes, folders=folders, unsafe=config.unsafe_code)

    async def start(self) -> None:
        await self._sandbox.start()

    async def stop(self) -> None:
        await self._sandbox.close()

    def describe(self) -> JsonObject:
        return {**super().describe(), "sandbox": self._sandbox.protections.holding}

    async def verify(self, body: CodeGenRequest) -> VerifyResponse:
        text = output_text(body.response)
        found: JsonObject = {
            "extracted_model_output": text or None,
            "extracted_model_code": code_of(text) or None,
            "result": None,
            "metadata": None,
            "unit_tests_time_taken": 0.0,
            "reasoning_format_violation_rate": 0.0,
            "difficulty": body.verifier_metadata.difficulty,
        }
        code = found["extracted_model_code"]
        if code is None:
            return body.scored(reward=0.0, **found)
        cases = await cases_of(body.verifier_metadata.unit_tests)
        if self.config.fast_mode:
            cases = cases[: self.config.num_fast_tests]
        began = time.perf_counter()
        results, last = await self._tested(code, cases)
        found["unit_tests_time_taken"] = time.perf_counter() - began
        found |= {"result": results, "metadata": last.details}
        reward = float(all(result is True for result in results))
        if is_reasoning_misplaced(body.response):
            found["reasoning_format_violation_rate"] = 1.0
            reward = self.config.reasoning_format_penalty
        return body.scored(reward=reward, **found)

    async def _tested(self, code: str, cases: list[Case]) -> tuple[list[bool | int], Judgement]:
        """The result of each test up to the first that fails, and what is known of the last."""
        results: list[bool | int] = []
        for case in cases:
            run = await self._run(code, case)
            judgement = await _judged(case, run)
            results.append(judgement.result)
            if judgement.result is not True:
                return results, judgement
        return results, judgement

    async def _run(self, code: str, case: Case) -> SandboxRun:
        limits = SandboxLimits(
            time_s=self.config.unit_test_timeout_secs,
            memory_mb=self.config.unit_test_memory_mb,
            output_bytes=SPARE_OUTPUT + 2 * len(case.expected_text.encode()),
        )
        run = partial(
            self._sandbox.run,
            code,
            stdin=case.stdin,
            function=case.function,
            arguments=case.arguments,
            starter=True,
            limits=limits,
        )
        try:
            found = await run()
            if found.end == "time" and found.cpu_s < STARVED * limits.time_s:
                found = (
                    await run()
                )  # the machine may have stood still, which is not the code's fault
            return found
        except SandboxError as error:
            raise VerifyError(f"the sandbox failed: {error}") from error


async def _judged(case: Case, run: SandboxRun) -> Judgement:
    if len(run.stdout) + len(case.expected_text) < LARGE:
        return judged(case, run)
    return await asyncio.to_thread(judged, case, run)
