"""A resources server as others write theirs for NeMo Gym: FastAPI routes of its own, the session in
a signed cookie, and not one route that it does not need. It is reached by URL as it is."""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uvicorn
from endpoint import endpoint
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.middleware.sessions import SessionMiddleware
from support import read_jsonl, write_jsonl
from workplace import Workplace

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.responses import function_calls
from rollout_kit.serving.sockets import bound_socket, url_of

CONFIG = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
shop: {{resources_servers: {{shop: {{placement: '{url}'}}}}}}
shop_agent:
  responses_api_agents:
    simple_agent:
      placement: {placement}
      resources_server: {{type: resources_servers, name: shop}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


class Item(BaseModel):
    name: str
    price: int


class Verify(BaseModel):
    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    budget: int
    number: int


class Shop:
    """Baskets by session; every answer takes a moment, so that rollouts overtake each other."""

    def __init__(self) -> None:
        self.baskets: dict[str, list[Item]] = {}
        self.busiest = self.busy = 0
        self.app = app = FastAPI()
        app.add_middleware(SessionMiddleware, secret_key="s", session_cookie="Shop___shop")

        @app.post("/seed_session")
        async def seed_session(request: Request) -> dict[str, Any]:
            request.session["session_id"] = id = str(uuid4())
            self.baskets[id] = []
            return {}

        @app.post("/put_in", response_class=PlainTextResponse)
        async def put_in(item: Item, request: Request) -> str:
            self.basket(request).append(item)
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            await asyncio.sleep(random.random() / 50)
            self.busy -= 1
            request.session["num_items"] = len(self.basket(request))  # the cookie is renewed
            return f"{item.name} is in the basket"

        @app.post("/total")
        async def total(request: Request) -> dict[str, int]:
            return {"total": sum(item.price for item in self.basket(request))}

        @app.post("/verify")
        async def verify(body: Verify, request: Request) -> dict[str, Any]:
            basket = self.basket(request)
            assert request.session["num_items"] == len(basket)
            total = sum(item.price for item in basket)
            reward = float(total == body.budget)
            return {**body.model_dump(), "reward": reward, "num_items": len(basket)}

    def basket(self, request: Request) -> list[Item]:
        if (id := request.session.get("session_id")) not in self.baskets:
            raise HTTPException(403, "who are you?")
        return self.baskets[id]

    def answer_all(self) -> None:
        """A route for every other POST: then a GET of one gets a 405, and no longer a 404."""

        @self.app.post("/{tool}")
        async def unknown(tool: str) -> str:
            return f"there is no tool {tool}"


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Its URL, while inside; as anybody serves a FastAPI app."""
    sock = bound_socket("127.0.0.1", 0)
    url = url_of(sock)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(10)


def function(name: str, *numbers: str) -> dict[str, Any]:
    properties = {each: {"type": "integer"} for each in numbers} | {"name": {"type": "string"}}
    return {"type": "function", "name": name, "parameters": {"properties": properties}}


def task(number: int) -> dict[str, Any]:
    """To put in so many things, each as dear as the task's number; every fourth expects more."""
    prices = [number + 1] * (number % 3 + 1)
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": json.dumps(prices)}],
            "tools": [function("put_in", "price"), function("total")],
        },
        "budget": sum(prices) + (number % 4 == 0),
        "number": number,
    }


def buyer(body: dict[str, Any]) -> tuple[int, Any]:
    """Puts one thing in after the other, asks for the total, and says it."""
    prices = json.loads(body["input"][0]["content"])
    made = len(function_calls(body["input"]))
    if made < len(prices):
        return 200, call_response(("put_in", f'{{"name": "n{made}", "price": {prices[made]}}}'))
    if made == len(prices):
        return 200, call_response(("total", "{}"))
    return 200, text_response(f"It comes to {body['input'][-1]['output']}")


@pytest.mark.parametrize(
    ("placement", "prepare"),
    [("local", lambda shop: None), ("process", Shop.answer_all)],
    ids=["in one process, 404", "an agent in its own, 405"],
)
def test_rollouts_with_tools_keep_their_own_state_across_calls(
    tmp_path: Path, placement: str, prepare: Callable[[Shop], None]
) -> None:
    shop = Shop()
    prepare(shop)
    with endpoint(buyer) as model, served(shop.app) as url:
        place = Workplace(tmp_path, model)
        write_jsonl(tmp_path / "tasks.jsonl", [task(number) for number in range(24)])
        (tmp_path / "run.yaml").write_text(CONFIG.format(url=url, placement=placement))
        status, said = place.collect("+num_samples_in_parallel=12", "+num_repeats=2")
    assert status == 0, said
    lines = place.lines()
    assert len(lines) == 48 == len(shop.baskets), "a session for each rollout"
    assert shop.busiest > 1, "several were at it at once"
    for line in lines:
        number, spent = line["number"], line["budget"] - (line["number"] % 4 == 0)
        assert line["reward"] == float(number % 4 != 0)
        assert line["num_items"] == number % 3 + 1
        assert f'{{"total":{spent}}}' in line["response"]["output"][-1]["content"][0]["text"]
    assert not read_jsonl(tmp_path / "out/rollouts.d/failures.jsonl")


def test_a_row_that_it_cannot_take_and_a_session_that_it_does_not_know_are_failures(
    tmp_path: Path,
) -> None:
    shop = Shop()
    rows = [task(1), {**task(2), "budget": "a fortune"}]
    with endpoint(buyer) as model, served(shop.app) as url:
        place = Workplace(tmp_path, model)
        write_jsonl(tmp_path / "tasks.jsonl", rows)
        (tmp_path / "run.yaml").write_text(CONFIG.format(url=url, placement="local"))
        status, said = place.collect()
    assert status == 2, said
    assert [line["reward"] for line in place.lines()] == [1.0]
    [failure] = read_jsonl(tmp_path / "out/rollouts.d/failures.jsonl")
    assert (failure["failure"]["class"], failure["failure"]["status"]) == ("TaskError", 422)
    assert failure["response"]["output"], "the response is kept: it was paid for"
