"""The default loop of NeMo Gym's protocol: it keeps only the cookies of each latest reply."""

import json
from typing import Any

from nemo_gym.servers import Agent, post


class PlainAgent(Agent):
    async def run(self, body: dict[str, Any]) -> dict[str, Any]:
        resources, model = (
            self.config[key]["name"] for key in ("resources_server", "model_server")
        )
        _, cookies = await post(resources, "/seed_session", body, {})
        params, of_model, items = body["responses_create_params"], {}, []
        asked = params["input"]
        asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        while True:
            request = {**params, "input": [*asked, *items]}
            text, of_model = await post(model, "/v1/responses", request, of_model)
            response = json.loads(text)
            items += response["output"]
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            for call in calls:
                arguments = json.loads(call["arguments"])
                text, cookies = await post(resources, f"/{call['name']}", arguments, cookies)
                output = {"call_id": call["call_id"], "output": text}
                items.append({"type": "function_call_output", **output})
            if not calls:
                break
        row = {**body, "response": {**response, "output": items}}
        text, _ = await post(resources, "/verify", row, cookies)
        return json.loads(text)


if __name__ == "__main__":
    PlainAgent.run_webserver()
