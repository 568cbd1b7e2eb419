"""Fake vLLMs: real processes that start, answer and die."""

import asyncio
import importlib
import json
import sys
from pathlib import Path

import pytest

from rollout_kit.serving import registry
from rollout_kit.serving.transport.retry import RetryPolicy

FAKE = Path(__file__).with_name("fake_vllm.py")
VllmModel = registry.load("responses_api_models", "vllm_model")
PARTS = VllmModel.__module__.rpartition(".")[0]


class Fakes:
    """Fake vLLMs of one test: how they behave, and what they saw."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.executable = folder / "vllm"
        self.executable.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
        self.executable.chmod(0o755)
        self.plan()

    def plan(self, **plan):
        names = (
            "starts",
            "asked",
            "generated",
            "derendered",
            "rendered",
            "events",
            "bad",
            "slow",
            "held",
            "aborted",
        )
        told = {name: str(self.folder / name) for name in names}
        if "fails" in plan:
            (self.folder / "fails").write_text(plan["fails"])
            plan["fails"] = str(self.folder / "fails")
        self.monkeypatch.setenv("FAKE_VLLM", json.dumps({**told, **plan}))

    def seen(self, what):
        path = self.folder / what
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, use, **settings):
        """`use(model)` with a model whose vLLMs have started; all of them are gone afterwards."""

        async def main():
            block = {"model_name": "org/m", "vllm_executable": str(self.executable), **settings}
            model = VllmModel(VllmModel.Config(**block), None, "policy_model")
            try:
                await model.start()
                return await use(model)
            finally:
                await model.stop()

        try:
            return asyncio.run(main())
        finally:
            assert not any(self.is_alive(one["pid"]) for one in self.seen("starts"))

    @staticmethod
    def is_alive(pid):
        """A zombie is not: it waits for whoever adopted it."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.delenv("ROLLOUT_KIT_PROCESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    engine = importlib.import_module(f"{PARTS}.engine")
    monkeypatch.setattr(engine, "POLL_S", 0.02)
    monkeypatch.setattr(engine, "VLLM_RESTART", RetryPolicy(base_s=0.01, cap_s=0.05))
    return Fakes(tmp_path, monkeypatch)
