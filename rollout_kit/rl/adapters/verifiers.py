"""An environment of this toolkit as one of verifiers, and so of prime-rl. A module or package, here
`sums.py`, makes it known by its name, as in `vf-eval @ sums.toml`:

    from rollout_kit.rl.adapters.verifiers import RolloutEnv, RolloutTaskset

    class Sums(RolloutTaskset):
        config_paths = ["math_with_verify.yaml", "trainer_model.yaml"]
        server = "math_with_verify"

    __all__ = ["RolloutEnv", "Sums"]

verifiers makes the model calls and runs the agent; the tasks, the tools and the verdict are those
of the resources server, which runs in the worker's process. The configuration must name a policy
model, which is not asked: `trainer_model` is one without weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import httpx  # type: ignore[import-not-found]
from verifiers.v1.tasksets.nemo_gym import (  # type: ignore[import-not-found]
    NeMoGymEnv,
    NeMoGymTask,
    NeMoGymTaskset,
)

from ...api.servers import servers
from ...errors import ConfigError
from ...serving.sockets import bound_socket, url_of
from ...serving.transport.peers import Local


class RolloutTask(NeMoGymTask):
    """A row that names no tools gets those of the server."""

    async def setup(self, trace: Any, runtime: Any) -> None:
        params, url = self.data.row["responses_create_params"], self.config.resources_url
        if url and "tools" not in params:
            async with httpx.AsyncClient(headers=self.config.headers) as client:
                reply = await client.get(f"{url}/tools", timeout=self.config.request_timeout)
            self.data.row["responses_create_params"] = {**params, "tools": reply.json()}
        await super().setup(trace, runtime)


class RolloutTaskset(NeMoGymTaskset):
    """The tasks of `dataset`, a JSONL file, for a resources server of a configuration."""

    config_paths: ClassVar[Sequence[str]] = ()
    server: ClassVar[str] = ""
    overrides: ClassVar[Sequence[str]] = ()
    tasks: ClassVar[Path | None] = None
    """Rows of a package, for a `dataset` of the same name that is not where the command runs."""

    def load(self) -> Iterator[RolloutTask]:
        named: Path = self.config.dataset
        if self.tasks is not None and named.name == self.tasks.name and not named.exists():
            self.config.dataset = self.tasks
        for task in super().load():
            yield RolloutTask(task.data, self.config.task)


class RolloutEnv(NeMoGymEnv):
    """Starts the resources server of its taskset, unless the configuration has a URL."""

    _servers: AsyncExitStack | None = None

    async def start(self) -> None:
        taskset: Any = self.taskset
        if taskset.config.task.resources_url is not None:
            return
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(
                servers(*taskset.config_paths, overrides=taskset.overrides)
            )
            transport = found.peers.transport(taskset.server)
            if not isinstance(transport, Local):
                raise ConfigError(
                    f"{taskset.server}: leave its placement out, so that it runs here"
                )
            sock = bound_socket("127.0.0.1", 0)
            service: Any = transport.service
            await stack.enter_async_context(service.serving(sock))
            taskset.config.task.resources_url = url_of(sock)
            self._servers = stack.pop_all()

    async def stop(self) -> None:
        if self._servers is not None:
            taskset: Any = self.taskset
            taskset.config.task.resources_url = None
            stack, self._servers = self._servers, None
            await stack.aclose()
