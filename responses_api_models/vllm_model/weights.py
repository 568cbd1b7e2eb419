"""What vLLM offers to change the weights of one running server.

The routes exist with `VLLM_SERVER_DEV_MODE=1`; those of adapters with `--enable-lora` and
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. Every failure is a BadReplica.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from rollout_kit.errors import PeerError, RolloutKitError, summary
from rollout_kit.serving.endpoints.refusals import read_reply
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.types import JsonObject

UPDATE_TIMEOUT_S = 1800.0
"""A model of 70 billion parameters takes a quarter of an hour to load from a slow disk."""

ASK_TIMEOUT_S = 30.0

NOTHING = hashlib.sha256(b"").hexdigest()
"""Checksum of a tensor that the engine has packed away, as on a CPU: it tells nothing."""

DEV_MODE = "vLLM must run with VLLM_SERVER_DEV_MODE=1, as it does with rl: true"


class BadReplica(RolloutKitError):
    """A vLLM server did not do what an update needs."""


class Replica:
    """The control routes of the vLLM server at `url`."""

    def __init__(self, url: str, http: HttpClient, headers: Mapping[str, str]) -> None:
        self.url = url
        self._http, self._headers = http, headers

    async def pause(self) -> None:
        """Stop generating; requests stay, with their keys and values."""
        await self._post("/pause?mode=keep&clear_cache=false")

    async def resume(self) -> None:
        await self._post("/resume")

    async def reload(self, folder: Path, *, is_new: bool) -> None:
        """Load the weights of a folder. If they are new, they must change a checksum."""
        before = await self._checksums() if is_new else {}
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._post("/collective_rpc", call, timeout_s=UPDATE_TIMEOUT_S)
        if not before or NOTHING in before.values():
            return
        if await self._checksums() == before:
            raise BadReplica(f"{self.url}: the weights are the same after the reload")

    async def name_version(self, version: int) -> None:
        await self._post("/update_weight_version", {"new_version": label_of(version)})

    async def read_version(self) -> int | None:
        """The number in the version that vLLM reports; None if there is none."""
        told = await self._ask("GET", "/weight_info", None, ASK_TIMEOUT_S)
        return version_of(str(told.get("weight_version", "")))

    async def add_adapter(self, version: int, folder: Path) -> None:
        body = {"lora_name": label_of(version), "lora_path": str(folder)}
        try:
            await self._post("/v1/load_lora_adapter", body, timeout_s=UPDATE_TIMEOUT_S)
        except BadReplica as error:
            if "already been loaded" not in str(error):
                raise

    async def remove_adapter(self, version: int) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": label_of(version)})

    async def sleep(self, level: int) -> None:
        await self._post(f"/sleep?level={level}", timeout_s=UPDATE_TIMEOUT_S)

    async def wake(self) -> None:
        await self._post("/wake_up", timeout_s=UPDATE_TIMEOUT_S)

    async def _checksums(self) -> dict[str, Any]:
        """Tensor → checksum; nothing if this vLLM cannot compute them."""
        try:
            told = await self._post("/weight_checker", {"action": "checksum"})
        except BadReplica:
            return {}
        return dict(_flatten(told))

    async def _post(
        self, path: str, body: JsonObject | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> JsonObject:
        return await self._ask("POST", path, body, timeout_s)

    async def _ask(
        self, method: str, path: str, body: JsonObject | None, timeout_s: float
    ) -> JsonObject:
        url, headers = f"{self.url}{path}", self._headers
        try:
            if method == "GET":
                reply = await self._http.get(url, headers=headers, timeout_s=timeout_s)
            else:
                raw = orjson.dumps(body or {})
                reply = await self._http.post(url, raw, headers=headers, timeout_s=timeout_s)
        except PeerError as error:
            raise BadReplica(error.message) from error
        told = read_reply(reply.raw)
        if reply.status == 200:
            return told if isinstance(told, dict) else {"reply": told}
        why = DEV_MODE if reply.status == 404 else summary(told, reply.text())
        raise BadReplica(f"{url} answered {reply.status}: {why}")


def label_of(version: int) -> str:
    """The version in vLLM; also the name of an adapter, and the salt of the prefix cache."""
    return f"step-{version}"


def version_of(label: str, unnamed: int | None = None) -> int | None:
    """The number at the end of a label; `unnamed` if it has none, as before the first update."""
    number = re.search(r"\d+$", label)
    return int(number[0]) if number else unnamed


def _flatten(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(tree, dict):
        return [each for key, value in tree.items() for each in _flatten(value, f"{name}/{key}")]
    if isinstance(tree, list):
        return [
            each
            for number, value in enumerate(tree)
            for each in _flatten(value, f"{name}/{number}")
        ]
    return [(name, tree)]
