"""Reward for the expected letter."""

from typing import Any

from nemo_gym.servers import ResourcesServer, said


class Letters(ResourcesServer):
    async def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = said(body["response"])
        if self.config.get("ignores_case"):
            answer = answer.lower()
        return {**body, "reward": float(answer == body["expected_answer"]), "answer": answer}


if __name__ == "__main__":
    Letters.run_webserver()
