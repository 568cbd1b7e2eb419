"""A game of NeMo Gym's Gymnasium kind: it has /reset and /step, and neither a session to seed nor a
verifier. Two can play at a time."""

from typing import Any

from fastapi import HTTPException, Request
from nemo_gym.servers import Server, said


class Guess(Server):
    def __init__(self) -> None:
        super().__init__()
        self.tries: dict[str, int] = {}
        self.app.post("/reset")(self.reset)
        self.app.post("/step")(self.step)
        self.app.post("/close")(self.close)

    async def reset(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        if len(self.tries) == 2:
            raise HTTPException(500, "every table is taken")
        self.tries[request.session["session_id"]] = 0
        return {"observation": "Guess a number.", "info": {"supports_explicit_close": True}}

    async def close(self, request: Request) -> dict[str, Any]:
        del self.tries[request.session["session_id"]]
        return {}

    async def step(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        session = request.session["session_id"]
        self.tries[session] += 1
        is_right = said(body["response"]) == body["secret"]
        is_over = is_right or self.tries[session] >= 3
        return {
            "observation": None if is_over else "No. Again.",
            "reward": 1.0 / self.tries[session] if is_right else 0.0,
            "terminated": is_right,
            "truncated": is_over and not is_right,
            "info": {"tries": self.tries[session]},
        }


if __name__ == "__main__":
    Guess.run_webserver()
