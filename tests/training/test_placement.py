"""Generation and training in turns on one GPU, with a stand-in that counts its memory; and single
answers of a model server."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support import asked

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.errors import ModelError
from rollout_kit.rl import InferenceEngine, Phases
from rollout_kit.serving.transport.peers import Local, Peers

GPU_GB, SERVING_GB, ASLEEP_GB, TRAINING_GB = 80, 70, 2, 60


class Gpu:
    """Counts what is allocated on it; more than it has is an error."""

    def __init__(self) -> None:
        self.used: dict[str, int] = {"server": SERVING_GB}
        self.most = SERVING_GB

    def allocate(self, name: str, size: int) -> None:
        self.used[name] = size
        self.most = max(self.most, sum(self.used.values()))
        if sum(self.used.values()) > GPU_GB:
            raise MemoryError(f"{self.used} on {GPU_GB} GB")


@contextmanager
def serve(gpu: Gpu, fails: bool = False) -> Iterator[str]:
    """A model server that can sleep."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if not fails:
                is_asleep = self.path == "/sleep"
                gpu.allocate("server", ASLEEP_GB if is_asleep else SERVING_GB)
            self.send_response(501 if fails else 200)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_memory_of_both_phases_fits_only_in_turns() -> None:
    gpu = Gpu()
    with serve(gpu) as url:
        phases = Phases(url)
        with pytest.raises(MemoryError):
            gpu.allocate("trainer", TRAINING_GB)
        gpu.used.pop("trainer")
        gpu.most = 0
        for _ in range(3):
            with phases.training():
                gpu.allocate("trainer", TRAINING_GB)
                gpu.used.pop("trainer")
        assert gpu.most == max(SERVING_GB, ASLEEP_GB + TRAINING_GB)
        with pytest.raises(ValueError, match="loss"), phases.training():
            raise ValueError("the loss is NaN")
        assert gpu.used == {"server": SERVING_GB}


def test_a_server_that_cannot_sleep_is_named() -> None:
    with (
        serve(Gpu(), fails=True) as url,
        pytest.raises(ModelError, match="/sleep: 501"),
        Phases(url).training(),
    ):
        pass


def test_an_engine_answers_batches_and_sessions() -> None:
    model = ScriptedModel(lambda params: f"{asked(params)} at {params['temperature']}")

    async def main() -> None:
        engine = InferenceEngine(Peers({"policy_model": Local(model)}), parallel=2, temperature=1)
        assert await engine.generate(["a", "b", "c"]) == ["a at 1", "b at 1", "c at 1"]
        async with engine.session() as session:
            found = await asyncio.gather(*(session.generate(each) for each in ("d", "e")))
        assert found == ["d at 1", "e at 1"]
        conversation = [{"role": "user", "content": "f"}]
        assert await engine.generate([conversation]) == ["f at 1"]

    asyncio.run(main())
