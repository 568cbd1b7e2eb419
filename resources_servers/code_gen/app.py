"""Programs and functions, verified by unit tests in LiveCodeBench's format.

Each test is a separate run in the sandbox. Expected outputs stay outside; outputs and returned
values are compared here.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
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
from rollout_kit.serving.sandbox.container import ContainerConfig
from rollout_kit.serving.service import OPERATIONAL

from .extraction import is_reasoning_misplaced
from .programs import find_code, judge_program
from .rows import Case, Metadata, read_cases
from .rules import Judgement, judge_run

log = logging.getLogger(__name__)

LARGE = 1 << 16
"""Outputs of at least so many bytes are compared in a thread; it takes a few milliseconds."""

SPARE_OUTPUT = 1 << 20
"""Bytes that a program may print in addition to twice the expected output."""

STARVED = 0.5
"""Repeat a test once if it reached its time limit with less than this share of it as CPU time."""


class CodeGenConfig(ContainerConfig, ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    num_processes: int = Field(
        8,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Number of tests that run at the same time, each in a prepared process of 15"
        " MB.",
    )
    unit_test_timeout_secs: float = Field(10.0, gt=0, description="Time limit for one test.")
    unit_test_memory_mb: int = Field(
        1024, ge=64, description="Memory limit for one test, for all its processes together."
    )
    reasoning_format_penalty: float = Field(
        0.0, description="Reward if the answer contains think tags, independently of the code."
    )
    num_fast_tests: int = Field(3, ge=1, description="Number of tests with fast_mode.")
    packages: list[str] = Field(
        ["numpy"],
        description="Installed packages that code may import. Other packages are not available.",
    )
    packages_dir: Path | None = Field(
        None,
        description="A folder with packages that code may import, made with pip install --target.",
    )
    unsafe_code: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Run code even if the sandbox does not work.",
    )


class CodeGenRequest(Metadata, VerifyRequest):
    """A row with its response."""


class CodeGen(ResourcesServer):
    """Reward 1.0 if every test passes, else 0.0."""

    Config = CodeGenConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"unit_tests_time_taken"})

    def __init__(self, config: CodeGenConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        folders = [config.packages_dir] if config.packages_dir else []
        self._sandbox = Sandbox(
            config.num_processes,
            folders=folders,
            packages=config.packages,
            unsafe=config.unsafe_code,
            container=config.container,
        )

    async def start(self) -> None:
        missing = sorted(set(self.config.packages) - self._sandbox.versions.keys())
        if missing and self.config.container_image is None:
            log.warning(
                "%s: code that imports %s fails, because it is not installed: pip install %s",
                *(self.name, ", ".join(missing), " ".join(missing)),
            )
        await self._sandbox.start()

    async def stop(self) -> None:
        await self._sandbox.close()

    def library_versions(self) -> dict[str, str]:
        if image := self.config.container_image:
            return {"image": image}
        return {**self._sandbox.versions, "python": ".".join(map(str, sys.version_info[:2]))}

    def describe(self) -> JsonObject:
        return {**super().describe(), "sandbox": self._sandbox.protections.holding}

    async def verify(self, body: CodeGenRequest) -> VerifyResponse:
        text, tests = output_text(body.response), body.unit_tests
        found: JsonObject = {
            "extracted_model_output": text or None,
            "extracted_model_code": find_code(text, tests) or None,
            "result": None,
            "metadata": None,
            "unit_tests_time_taken": 0.0,
            "reasoning_format_violation_rate": 0.0,
            "difficulty": body.difficulty,
        }
        code = found["extracted_model_code"]
        if code is None:
            return body.scored(reward=0.0, **found)
        began = time.perf_counter()
        if tests.program is None:
            cases = await read_cases(tests)
            if self.config.fast_mode:
                cases = cases[: self.config.num_fast_tests]
            results, last = await self._run_tests(code, cases)
        else:
            last = await judge_program(self._run_function, code, tests)
            results = [last.result]
        found["unit_tests_time_taken"] = time.perf_counter() - began
        found |= {"result": results, "metadata": last.details}
        reward = float(all(result is True for result in results))
        if is_reasoning_misplaced(body.response):
            found["reasoning_format_violation_rate"] = 1.0
            reward = self.config.reasoning_format_penalty
        return body.scored(reward=reward, **found)

    async def _run_tests(self, code: str, cases: list[Case]) -> tuple[list[bool | int], Judgement]:
        """Run the tests up to the first failure; return all results and the last judgement."""
        results: list[bool | int] = []
        for case in cases:
            run = await self._run(code, case)
            judgement = await _judge(case, run)
            results.append(judgement.result)
            if judgement.result is not True:
                return results, judgement
        return results, judgement

    async def _run_function(self, code: str, function: str, arguments: list[Any]) -> SandboxRun:
        """Run a function of code in the sandbox, without LiveCodeBench's imports."""
        limits = SandboxLimits(
            time_s=self.config.unit_test_timeout_secs,
            memory_mb=self.config.unit_test_memory_mb,
            output_bytes=SPARE_OUTPUT,
        )
        return await self._run_twice(
            partial(self._sandbox.run, code, function=function, arguments=arguments, limits=limits),
            limits.time_s,
        )

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
        return await self._run_twice(run, limits.time_s)

    async def _run_twice(
        self, run: Callable[[], Awaitable[SandboxRun]], time_s: float
    ) -> SandboxRun:
        """The result of a run, or of its repetition if the machine stalled."""
        try:
            found = await run()
            if found.end == "time" and found.cpu_s < STARVED * time_s:
                found = await run()  # the machine may have stalled
            return found
        except SandboxError as error:
            raise VerifyError(f"the sandbox failed: {error}") from error


async def _judge(case: Case, run: SandboxRun) -> Judgement:
    if len(run.stdout) + len(case.expected_text) < LARGE:
        return judge_run(case, run)
    return await asyncio.to_thread(judge_run, case, run)
