"""An audit of a server whose judges are models that take replies literally."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from support import OF_OTHERS

from rollout_kit.authoring.audit_stage import audit
from rollout_kit.authoring.examination import make_judges
from rollout_kit.config.keys import AuditConfig
from rollout_kit.config.load import Config, load
from rollout_kit.serving import registry
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.peers import Peers


def run_audit_of(name: str, models: Path, num_rows: int = 20) -> dict[str, Any]:
    """Audit a server with its own configuration. `models`: the file that is written for its
    judges."""

    async def main() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            blocks = {}
            server = registry.load("resources_servers", name)
            made = {} if name in OF_OTHERS else make_judges(server)
            for judge, make in made.items():
                sock = bound_socket("127.0.0.1", 0)
                blocks[judge] = {"responses_api_models": {"judge": {"placement": url_of(sock)}}}
                await stack.enter_async_context(make(Peers({}), judge).serving(sock))
            if "policy_model" not in blocks:
                simulated = {"simulated_model": {"answer": "text", "text": "no"}}
                blocks["policy_model"] = {"responses_api_models": simulated}
            return await audit(_load_audit(name, models, blocks, num_rows), lambda line: None)

    return asyncio.run(main())


def _load_audit(
    name: str, models: Path, blocks: dict[str, Any], num_rows: int
) -> Config[AuditConfig]:
    models.write_text(json.dumps(blocks))
    config = f"resources_servers/{name}/configs/{name}.yaml"
    argv = [f"+config_paths=[{config},{models}]", f"+resources_server_name={name}"]
    argv.append(f"+num_rows={num_rows}")
    return load(argv, AuditConfig)
