"""The smallest environment with a tool: ask for the weather, then answer."""

from typing import Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict

from rollout_kit import (
    Item,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    content_texts,
    output_items,
    tool,
)
from rollout_kit.responses import pair_outputs


class ExampleSingleToolCallConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")


class WeatherReport(BaseModel):
    city: str
    weather_description: str


class ExampleSingleToolCall(ResourcesServer):
    """Reward 1.0 if `get_weather` was called, returned, and a message followed; else 0.0."""

    Config = ExampleSingleToolCallConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    @tool
    async def get_weather(self, city: str) -> WeatherReport:
        """The current weather in a city."""
        return _make_report(city)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        output = output_items(body.response)
        answered_at = _find_first_output(output)
        was_called = answered_at is not None
        has_answered = was_called and any(_is_answer(item) for item in output[answered_at:])
        return body.scored(reward=float(has_answered), tool_was_called=was_called)


def _make_report(city: str) -> WeatherReport:
    return WeatherReport(city=city, weather_description=f"The weather in {city} is cold.")


def _find_first_output(output: list[Item]) -> int | None:
    """Return the position of the first correct output of a `get_weather` call, or None."""
    asked = {
        id(answer): _read_city(call.get("arguments"))
        for call, answer in pair_outputs(output)
        if call.get("name") == "get_weather"
    }
    for position, item in enumerate(output):
        city = asked.get(id(item))
        if city is not None and _holds(item.get("output"), _make_report(city)):
            return position
    return None


def _read_city(arguments: Any) -> str | None:
    given = _parse(arguments)
    city = given.get("city") if isinstance(given, dict) else None
    return city if isinstance(city, str) else None


def _holds(output: Any, report: WeatherReport) -> bool:
    return any(_parse(text) == report.model_dump() for text in content_texts(output))


def _parse(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return None


def _is_answer(item: Item) -> bool:
    return item.get("type") == "message" and any(
        text.strip() for text in content_texts(item.get("content"))
    )
