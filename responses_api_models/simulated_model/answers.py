"""The answer to a request: a function of its content and of random draws."""

from dataclasses import dataclass

import orjson

from .arguments import make_arguments, make_value
from .asked import CHARS_PER_TOKEN, Asked, num_tokens
from .commands import CommandScript
from .config import SimulatedModelConfig
from .draws import Draws
from .script import Script, Turn

FILLER = "Let me go through this step by step, and look at each part of it in turn. "

VOCABULARY = 50_000
"""Upper bound of token ids."""

LOG_PROBS = tuple(-0.001 - (k * 7919 % 4099) / 4099 for k in range(4099))
"""Answers are taken from here, from a drawn position on, so that large ones are cheap."""


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`is_cut` if the limit of output tokens cut the answer."""

    id: str
    text: str
    calls: tuple[Call, ...]
    num_tokens: int
    is_cut: bool
    token_ids: "TokenIds | None" = None


@dataclass(frozen=True, slots=True)
class TokenIds:
    prompt: list[int]
    generated: list[int]
    log_probs: list[float]


class Answers:
    def __init__(self, config: SimulatedModelConfig, script: Script | CommandScript | None) -> None:
        self._config = config
        self._script = script

    def to(self, asked: Asked, draws: Draws) -> Answer:
        """The answer; TaskError if the script has no such prompt."""
        id = f"{draws.below(1 << 53):016x}"
        turn = self._turn(asked, draws)
        text = turn.text if turn.calls else self._said(turn.text, asked, draws)
        calls = tuple(
            Call(name, arguments, f"call_{id}{index}")
            for index, (name, arguments) in enumerate(turn.calls)
        )
        most = asked.max_tokens
        length = sum(num_tokens(each) for each in (text, *map("".join, turn.calls)))
        is_cut = most is not None and length > most
        if most is not None and is_cut:
            text, calls, length = text[: most * CHARS_PER_TOKEN], (), most
        return Answer(id, text, calls, length, is_cut, self._token_ids(asked, text, calls, draws))

    def _turn(self, asked: Asked, draws: Draws) -> Turn:
        if asked.tools and asked.num_turns < self._config.num_tool_turns:
            made = ((tool.name, make_arguments(tool.parameters, draws)) for tool in asked.tools)
            return Turn("", tuple((name, orjson.dumps(each).decode()) for name, each in made))
        if isinstance(self._script, CommandScript):
            return self._script.turn(asked, draws)
        if self._script:
            return self._script.turn(asked, self._config.accuracy, draws)
        return Turn(asked.last_user_text if self._config.answer == "echo" else self._config.text)

    def _said(self, text: str, asked: Asked, draws: Draws) -> str:
        """`text`, padded; where JSON is wanted and `text` is no such value, one from the schema."""
        if asked.schema is None:
            return self._padded(text, draws)
        made = make_value(asked.schema, draws)
        try:
            is_one = type(orjson.loads(text)) is type(made)
        except orjson.JSONDecodeError:
            is_one = False
        return text if is_one else orjson.dumps(made).decode()

    def _padded(self, text: str, draws: Draws) -> str:
        if self._config.output_tokens is None:
            return text
        wanted = round(draws.of(self._config.output_tokens)) * CHARS_PER_TOKEN
        missing = wanted - len(text) - 1
        if missing < 1:
            return text
        return f"{(FILLER * (missing // len(FILLER) + 1))[:missing]}\n{text}"

    def _token_ids(
        self, asked: Asked, text: str, calls: tuple[Call, ...], draws: Draws
    ) -> TokenIds | None:
        if not asked.body.get("return_token_ids", self._config.return_token_ids):
            return None
        said = text + "".join(call.name + call.arguments for call in calls)
        generated = token_ids(said)
        start, more = draws.below(len(LOG_PROBS)), len(generated) // len(LOG_PROBS) + 2
        log_probs = list((LOG_PROBS * more)[start : start + len(generated)])
        return TokenIds(token_ids(asked.prompt), generated, log_probs)


def token_ids(text: str) -> list[int]:
    """Token ids derived from the text, without a meaning."""
    raw = text.encode("utf-32-le")
    raw += bytes(-len(raw) % (4 * CHARS_PER_TOKEN))
    letters = memoryview(raw).cast("I").tolist()
    a, b, c, d = (letters[k::CHARS_PER_TOKEN] for k in range(CHARS_PER_TOKEN))
    return [
        (w + 131 * x + 17161 * y + 2248091 * z) % VOCABULARY
        for w, x, y, z in zip(a, b, c, d, strict=True)
    ]
