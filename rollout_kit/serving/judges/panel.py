"""Several judges, one rubric, one vote.

A reply that cannot be read is asked for again once. After that there is no verdict: the response is
stored without one, and the error names the judge.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from async_lru import alru_cache
from pydantic import ConfigDict, Field, model_validator

from ...errors import VerifyError
from ...responses import output_text
from ...trajectory import versions_of
from ...types import JsonObject
from ..agents.rollout_bounds import RolloutBounds
from ..judge import JudgeModel, JudgeModelConfig, shared_question
from ..service import OPERATIONAL, ServerRef
from ..transport.loop import gather_all
from ..transport.peers import Peers
from .allowance import Allowance
from .reply_file import ReplyFile, digest_question
from .rubric import (
    AGAIN,
    Criterion,
    Grade,
    Question,
    check_rubric,
    read_grades,
    schema_of,
    write_prompt,
)

Vote = Literal["majority", "mean", "third"]


class RubricConfig(JudgeModelConfig):
    """Keys of a resources server that has answers graded by a rubric.

    Example:

        class Config(rk.RubricConfig):
            max_words: int = 300
    """

    model_config = ConfigDict(extra="forbid")

    judges: list[ServerRef] = Field(
        default_factory=list,
        description="Model servers of several judges. Default: judge_model_server is the only"
        " judge.",
    )
    criteria: list[Criterion] = Field(
        default_factory=list,
        description="The rubric: name, description, weight, kind (binary, scaled or pairwise),"
        " lowest and highest. A row's `rubric` replaces it.",
    )
    vote: Vote = Field(
        "majority",
        description="majority: the median of the judges' scores, with an odd number of judges."
        " mean: their mean. third: the third judge is asked only if the first two"
        " disagree.",
    )
    ask: Literal["together", "each"] = Field(
        "together",
        description="together: one request for all criteria. each: one request for each criterion.",
    )
    judge_structured_output: bool = Field(
        False,
        description="Make the judges reply by a JSON schema. Their endpoints must support this.",
    )
    judge_cache_size: int = Field(
        default=4096,
        ge=0,
        json_schema_extra=OPERATIONAL,
        description="Number of cached replies. The same question is sent to the same judge only"
        " once.",
    )
    judge_cache_fpath: Path | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="File that keeps the replies for later runs. A stored reply is used only if"
        " question, model and settings are the same.",
    )

    rollout_limits: RolloutBounds | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="Limits for all judges of one rollout: {calls, tokens, cost_usd, seconds}. When"
        " a limit is reached, the response has no verdict.",
    )

    @model_validator(mode="after")
    def _is_sound(self) -> "RubricConfig":
        if self.criteria:
            check_rubric(self.criteria)
        number = len(self.judges) or 1
        if self.vote == "majority" and number % 2 == 0:
            raise ValueError(f"vote: majority needs an odd number of judges, not {number}")
        if self.vote == "third" and number != 3:
            raise ValueError(f"vote: third needs three judges, not {number}")
        names = [each.name for each in self.judges]
        calls = self.rollout_limits and self.rollout_limits.calls
        if calls is not None and calls < (least := 2 if self.vote == "third" else number):
            raise ValueError(f"rollout_limits: {calls} calls are too few for {least} judges")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"judges: '{twice}' is named twice")
        return self


class Opinion(NamedTuple):
    """What one judge says of an answer."""

    judge: str
    grades: list[Grade]
    num_asked: int
    """Requests that it took, those for a reply that can be read included."""

    def as_json(self) -> JsonObject:
        grades = [each._asdict() for each in self.grades]
        return {"judge": self.judge, "num_asked": self.num_asked, "grades": grades}


class _Reply(NamedTuple):
    """The grades of one question to a judge."""

    grades: list[Grade]
    num_asked: int
    tokens: int | None
    """Of all requests; None if the judge did not say."""
    lasts: bool
    """Whether the next question like it has the same reply: not where the weights of the judge
    change while it runs."""


class Graded(NamedTuple):
    """What the judges conclude. `reward` and `scores` are from 0 to 1.

    Example:

        print(rk.Graded(0.75, {"polite": 0.75}, []).scores["polite"])
    """

    reward: float
    scores: dict[str, float]
    """Criterion → score."""
    opinions: list[Opinion]


class RubricJudges:
    """Has answers graded by one or several models. ConfigError if no model is named.

    Example:

        class Polite(rk.ResourcesServer):
            Config = rk.RubricConfig

            async def start(self):
                self.judges = rk.RubricJudges(self.config, self.peers, self.name)

            async def verify(self, body: rk.VerifyRequest) -> rk.VerifyResponse:
                rubric = [rk.Criterion(name="polite", description="The answer is polite.")]
                answer = rk.output_text(body.response)
                found = await self.judges.grade(rubric, body.responses_create_params, answer)
                return body.scored(found.reward)
    """

    def __init__(self, config: RubricConfig, peers: Peers, name: str) -> None:
        self._config, self._peers = config, peers
        named = config.judges or [config.judge_model_server]
        self._models = {
            ref.name if ref else "": JudgeModel(
                config.model_copy(update={"judge_model_server": ref}), peers, name
            )
            for ref in named
        }
        self._kept = alru_cache(maxsize=config.judge_cache_size)(self._ask)
        path = config.judge_cache_fpath
        self._file = None if path is None or peers.is_taped else ReplyFile(path)

    async def grade(
        self,
        criteria: Sequence[Criterion],
        params: JsonObject,
        answer: str,
        reference: str = "",
    ) -> Graded:
        """Grade one answer; VerifyError, with the judge's name, if a judge gives no verdict that
        can be read."""
        question, judges = Question(params, answer, reference), list(self._models)
        allowance = Allowance(self._config.rollout_limits)
        first = judges[:2] if self._config.vote == "third" else judges
        asked = [self._opinion(each, criteria, question, allowance) for each in first]
        opinions = await gather_all(asked)
        if self._config.vote == "third" and _scores(opinions[0]) != _scores(opinions[1]):
            opinions.append(await self._opinion(judges[2], criteria, question, allowance))
        join = fmean if self._config.vote == "mean" else median
        scores = {
            each.name: join(_scores(opinion)[each.name] for opinion in opinions)
            for each in criteria
        }
        return Graded(weigh(criteria, scores), scores, opinions)

    async def _opinion(
        self,
        judge: str,
        criteria: Sequence[Criterion],
        question: Question,
        allowance: Allowance,
    ) -> Opinion:
        """What one judge says, in one request or several."""
        pairwise = [each for each in criteria if each.kind == "pairwise"]
        others = [each for each in criteria if each.kind != "pairwise"]
        parts = [*self._divide(others), *(swapped := self._divide(pairwise))]

        async def ask(part: tuple[Criterion, ...], *, is_swapped: bool) -> _Reply:
            if why := allowance.begin():
                raise self._models[judge].refuse(
                    f"was not asked: rollout_limits.{why}", is_final=True
                )
            reply = await self._ask_kept(judge, part, question, is_swapped=is_swapped)
            allowance.end(reply.num_asked, reply.tokens)
            return reply

        found = await gather_all(
            ask(part, is_swapped=number >= len(parts))
            for number, part in enumerate([*parts, *swapped])
        )
        grades: dict[str, Grade] = {}
        for number, reply in enumerate(found):
            for grade in reply.grades:
                if number >= len(parts):  # the same pair in the other order
                    before = grades[grade.criterion]
                    grade = before._replace(score=fmean((before.score, 1.0 - grade.score)))
                grades[grade.criterion] = grade
        num_asked = sum(reply.num_asked for reply in found)
        return Opinion(judge, [grades[each.name] for each in criteria], num_asked)

    def _divide(self, criteria: list[Criterion]) -> list[tuple[Criterion, ...]]:
        """What is asked in one request each."""
        if self._config.ask == "each":
            return [(each,) for each in criteria]
        return [tuple(criteria)] if criteria else []

    async def _ask_kept(
        self, judge: str, criteria: tuple[Criterion, ...], question: Question, *, is_swapped: bool
    ) -> _Reply:
        prompt = write_prompt(criteria, question, is_swapped=is_swapped)
        answer = question.answer
        # a recording identifies a call by its rollout, so each rollout must make its own calls
        if not self._config.judge_cache_size or self._peers.is_taped:
            return await self._ask(judge, criteria, prompt, answer)
        with shared_question():
            found = await self._kept(judge, criteria, prompt, answer)
            if not found.lasts:
                self._kept.cache_invalidate(judge, criteria, prompt, answer)
            return found

    async def _ask(
        self, judge: str, criteria: tuple[Criterion, ...], prompt: str, answer: str
    ) -> _Reply:
        """The grades of one question: of the file of replies, or by one or two requests."""
        model = self._models[judge]
        params = {"text": schema_of(criteria)} if self._config.judge_structured_output else {}
        key = await self._key_of(judge, prompt, params)
        if key and (known := self._find(judge, key)) is not None:
            return _Reply(read_grades(known, criteria, answer), 0, 0, True)
        messages: list[JsonObject] = [{"role": "user", "content": prompt}]
        said, why, usages = "", "", list[JsonObject | None]()
        for number in (1, 2):
            _, response = await model.ask(messages, **params)
            usages.append(response.get("usage"))
            said = output_text(response)
            try:
                grades = read_grades(said, criteria, answer)
            except ValueError as error:
                why = str(error)
            else:
                lasts = versions_of(response.get("output") or ()) is None
                if key and lasts:
                    self._keep(judge, key, said, response)
                return _Reply(grades, number, _count_tokens(usages), lasts)
            messages += [
                {"role": "assistant", "content": said or "…"},
                {"role": "user", "content": AGAIN.format(why=why)},
            ]
        raise model.refuse(f"gave no verdict that can be read: {why}", body=said, is_final=True)

    async def _key_of(self, judge: str, prompt: str, params: JsonObject) -> str:
        """The key of a question in the file of replies; empty without such a file."""
        if self._file is None:
            return ""
        about = await self._peers.describe(judge)
        if not about.get("model"):
            what = "does not say which model it is: leave out judge_cache_fpath"
            raise self._models[judge].refuse(what, is_final=True)
        model = [about.get(name) for name in ("model", "hosts", "settings")]
        return digest_question(model, self._config.judge_responses_create_params, params, prompt)

    def _find(self, judge: str, key: str) -> str | None:
        assert self._file is not None
        try:
            return self._file.find(key)
        except OSError as error:
            raise self._refuse_file(judge, error) from None

    def _keep(self, judge: str, key: str, said: str, response: JsonObject) -> None:
        assert self._file is not None
        try:
            self._file.add(key, said, judge=judge, model=str(response.get("model") or ""))
        except OSError as error:
            raise self._refuse_file(judge, error) from None

    def _refuse_file(self, judge: str, error: OSError) -> VerifyError:
        why = f"has no file of replies: judge_cache_fpath: {error.strerror}"
        return self._models[judge].refuse(why, is_final=True)


def weigh(criteria: Sequence[Criterion], scores: dict[str, float]) -> float:
    """The reward: the weighted scores over the sum of the positive weights, from 0 to 1."""
    total = sum(each.weight for each in criteria if each.weight > 0)
    reached = sum(each.weight * scores[each.name] for each in criteria)
    return min(1.0, max(0.0, reached / total))


def _count_tokens(usages: Sequence[JsonObject | None]) -> int | None:
    totals = [usage["total_tokens"] for usage in usages if usage and "total_tokens" in usage]
    return sum(totals) if len(totals) == len(usages) else None


def _scores(opinion: Opinion) -> dict[str, float]:
    return {each.criterion: each.score for each in opinion.grades}
