"""Judges in Python: models, a rubric and a vote, which verify a run or grade single answers."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from ..config.instances import MODELS, POLICY, RESOURCES
from ..config.keys import ReverifyConfig
from ..errors import ConfigError, validation_summary
from ..responses import make_response, message_item
from ..serving import registry
from ..serving.judges.panel import Graded, Opinion, Vote
from ..serving.judges.rubric import Criterion, Grade
from ..session import Session, entered
from ..types import JsonObject
from .given import Given, Modelled, ServerBlocks, join_blocks
from .model_names import Endpoint, ask_name
from .named_models import Models, describe_model, name_models
from .servers import started

SERVER = "rubric_judge"

Rubric = str | Mapping[str, str] | Sequence[Criterion | Mapping[str, Any]]
"""One question, name → description, or criteria."""


class JudgePanel:
    """What `judge` returns: a verifier for `verify=`, and a context in which it grades answers."""

    def __init__(self, models: Mapping[str, Modelled], settings: JsonObject) -> None:
        self._models, self._settings = models, settings
        self._stack = AsyncExitStack()
        self._peers: Any = None

    def describe_servers(self) -> ServerBlocks:
        """The environment and its judges, as in YAML."""
        own: JsonObject = {SERVER: {RESOURCES: {SERVER: self._settings}}}
        models = (describe_model(name, model) for name, model in self._models.items())
        return join_blocks([*models, ServerBlocks(own, {}, {})])

    async def ask_names(self) -> "JudgePanel":
        """The same with the names of models that are given by the URLs of their endpoints."""
        named = {
            name: await ask_name(model, "models") if isinstance(model, str | Endpoint) else model
            for name, model in self._models.items()
        }
        return JudgePanel(named, self._settings)

    async def __aenter__(self) -> Self:
        if self._peers is not None:
            raise ConfigError("judge: it is open already: call grade, or make another one")
        given = Given(verify=self)
        servers = started((), given, {}, kind=ReverifyConfig)
        self._peers = (await self._stack.enter_async_context(servers)).peers
        return self

    async def __aexit__(self, *_: object) -> None:
        self._peers = None
        await self._stack.aclose()

    async def grade(self, question: str | JsonObject, answer: str, reference: str = "") -> Graded:
        """Grade one answer to a question, which is a text or create params. `reference` is a good
        answer. VerifyError, with the judge's name, if a judge gives no verdict that can be read.
        """
        if self._peers is None:
            raise ConfigError("judge: grade works inside  async with rk.judge(…) as judges")
        params = {"input": question} if isinstance(question, str) else question
        row: JsonObject = {
            "responses_create_params": params,
            "response": make_response("answer", [message_item(answer)], None),
            **({"reference_answer": reference} if reference else {}),
        }
        with entered(Session()):
            found = await self._peers.call(SERVER, "/verify", row, dict)
        opinions = [
            Opinion(each["judge"], [Grade(**one) for one in each["grades"]], each["num_asked"])
            for each in found["judge_evaluations"]
        ]
        return Graded(found["reward"], found["rubric_scores"], opinions)


def judge(
    models: Models, rubric: Rubric, *, vote: Vote = "majority", **settings: Any
) -> JudgePanel:
    """Judges that grade answers by a rubric, for `verify=` of `collect`, `reverify` and `servers`.

    - `models` is one model, a list, or a mapping from names. Each is what `model=` of `collect`
      takes: `"openai/gpt-5-mini"`, a URL, an `Endpoint`, a `Model`, or a function.
    - `rubric` is what a good answer has: a text, a mapping from names to descriptions, or a list of
      `Criterion`. A row's own `rubric` replaces it.
    - `vote` is `"majority"` (the median), `"mean"`, or `"third"`: the third judge is asked only
      where the first two differ.
    - `settings` are further keys of `rubric_judge`, such as `judge_max_cost_usd=5.0`.

    Rewards and scores are from 0 to 1. Raises ConfigError if something is wrong.

    Example:

        import json


        def strict(params):
            reply = {"name": "rubric", "evidence": "4", "reason": "It is 4.", "score": True}
            return json.dumps({"criteria": [reply]})


        judges = rk.judge([strict, strict, strict], "The answer is right.")
        table = await rk.collect(rows, model=lambda params: "It is 4.", verify=judges)
        async with judges:
            print(await judges.grade("What is 2 + 2?", "It is 4."))
    """
    named = name_models(models)
    for name, whose in ((SERVER, "environment"), (POLICY, "policy")):
        if name in named:
            raise ConfigError(f"models: '{name}' is the name of the {whose}: choose another one")
    given: JsonObject = {
        "judges": [{"type": MODELS, "name": name} for name in named],
        "judge_model_server": None,
        "criteria": _read_rubric(rubric),
        "vote": vote,
        **{key: str(each) if isinstance(each, Path) else each for key, each in settings.items()},
    }
    try:
        registry.load(RESOURCES, SERVER).Config.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"judge: {validation_summary(error)}") from None
    panel = JudgePanel(named, given)
    panel.describe_servers()  # so that a model that does not exist is named here
    return panel


def _read_rubric(rubric: Rubric) -> list[JsonObject]:
    if isinstance(rubric, str):
        return [{"name": "rubric", "description": rubric}]
    if isinstance(rubric, Mapping):
        return [{"name": name, "description": text} for name, text in rubric.items()]
    return [
        each.model_dump(mode="json") if isinstance(each, Criterion) else dict(each)
        for each in rubric
    ]
