"""A counter of each session, with two tools."""

from typing import Any

from fastapi import Request
from nemo_gym.servers import ResourcesServer


class Counter(ResourcesServer):
    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.app.post("/add")(self.add)
        self.app.post("/read")(self.read)

    async def seed_session(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        self.counts[request.session["session_id"]] = body["initial_count"]
        return {}

    async def add(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[request.session["session_id"]] += body["number"]
        return {"success": True}

    async def read(self, request: Request) -> dict[str, Any]:
        return {"count": self.counts[request.session["session_id"]]}

    async def verify(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        count = self.counts[request.session["session_id"]]
        return {**body, "reward": float(count == body["expected_count"]), "count": count}


if __name__ == "__main__":
    Counter.run_webserver()
