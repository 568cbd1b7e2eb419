"""Plays a user's first words, asks the policy for the answer, and lists both calls."""

from typing import Any

from nemo_gym.servers import Agent, json, post


class Talk(Agent):
    async def run(self, body: dict[str, Any]) -> dict[str, Any]:
        known, task = body["episode_id"], body["task"]
        about = {"episode_id": known, "task_id": task["task_id"]}
        words = task["task_input"]["words"]
        if words == "nothing":
            failure = {"stage": "agent", "failure_reason": "no words", "terminal": True}
            return {**about, "failure": failure}
        asked = {"input": [{"type": "message", "role": "user", "content": words}]}
        path = f"/ng-rollout/{known['rollout_id']}/v1/responses"
        text, _ = await post(self.config["assistant"]["name"], path, asked, {})
        call = {"role": "assistant", "request": asked, "response": json.loads(text)}
        fields = sorted(task["task_input"])
        return {**about, "result": {"reward": 0.5, "invocations": [call], "fields": fields}}


if __name__ == "__main__":
    Talk.run_webserver()
