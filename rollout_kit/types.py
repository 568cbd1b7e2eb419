"""The values that every package shares: requests and replies, keys, attempts and outcomes.

Wire models check the fields they name and carry all others along unchanged. What a stage does not
look into stays plain JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import is_not
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, Self, TypeGuard

from pydantic import BaseModel, ConfigDict

from .errors import RolloutError
from .responses import JsonObject as JsonObject
from .responses import output_text
from .session import RETURNED
from .trajectory import Versions, versions_of

MISSING = object()

METADATA = "verifier_metadata"
"""Field of a row in which NeMo Gym's rows may have what the verifier reads."""

VERDICT = ("responses_create_params", "response", "reward")

set_plainly = object.__setattr__
"""Sets an attribute of a pydantic model without its checks."""


def splice(row: JsonObject, container: Mapping[str, Any], name: str) -> JsonObject:
    """The row with the fields of the container `name` at the top; ValueError if they contradict
    it."""
    for key, value in container.items():
        if key in row and row[key] != value:
            raise ValueError(f"{key} has two values, one of them in {name}: leave out one")
    return {**row, **container}


class Wire(BaseModel):
    """A request or reply. Named fields are checked; all others pass unchanged."""

    model_config = ConfigDict(extra="allow")


class RunRequest(Wire):
    """A task: the create params for the policy, and any fields that the verifier needs.

    Example:

        row = rk.RunRequest(responses_create_params={"input": "What is 2 + 2?"}, sum="4")
        print(row.model_dump())
    """

    responses_create_params: JsonObject


class SeedSessionResponse(Wire):
    """Reply of `/seed_session`; a server may add fields of its own.

    Example:

        print(rk.SeedSessionResponse(board="empty").model_dump())
    """


class VerifyRequest(RunRequest):
    """A task with the response to be scored (a Responses-API object).

    Example:

        class SumRequest(rk.VerifyRequest):
            expected_answer: str


        def verify(request: SumRequest):
            return float(rk.output_text(request.response) == request.expected_answer)


        await rk.collect(rows, model=lambda params: "4", verify=verify)
    """

    reads_metadata: ClassVar[bool] = False
    """Whether a subclass reads the row's `verifier_metadata` itself. If not, its fields may also
    stand there."""

    response: JsonObject

    def scored(self, reward: float, **scores: Any) -> "VerifyResponse":
        """This request with its reward and further figures of the verifier."""
        return VerifyResponse.of(self, {"reward": reward, **scores})


class VerifyResponse(VerifyRequest):
    """The request, plus `reward` (any finite number) and the verifier's own fields.

    Example:

        request = rk.VerifyRequest(responses_create_params={}, response={})
        print(request.scored(0.5, reason="half right").reward)
    """

    __slots__ = ("_asked",)

    reward: float

    @classmethod
    def of(cls, request: VerifyRequest, scores: Mapping[str, Any]) -> Self:
        given = {**given_fields(request), **scores}
        if cls is VerifyResponse:  # as `model_construct` would, in a tenth of the time
            made = cls.__new__(cls)
            set_plainly(made, "__pydantic_fields_set__", set(given))
            set_plainly(made, "__dict__", {name: given.pop(name) for name in VERDICT})
            set_plainly(made, "__pydantic_extra__", given)
            set_plainly(made, "__pydantic_private__", None)
        else:
            made = cls.model_construct(**given)
        set_plainly(made, "_asked", request)
        return made

    def scores(self) -> JsonObject | None:
        """The fields that differ from those of the request; None if the request is unknown."""
        request: VerifyRequest | None = getattr(self, "_asked", None)
        if request is None:
            return None
        asked = {**request.__dict__, **(request.__pydantic_extra__ or {})}
        found = {**self.__dict__, **(self.__pydantic_extra__ or {})}
        given = map(asked.get, found, repeat(MISSING))
        return dict(compress(found.items(), map(is_not, found.values(), given)))


def given_fields(model: BaseModel) -> JsonObject:
    """The fields that were set, extra fields included, defaults left out."""
    is_set, extra = model.__pydantic_fields_set__, model.__pydantic_extra__
    own = {name: value for name, value in model.__dict__.items() if name in is_set}
    return own if extra is None else {**own, **extra}


LARGEST = 1e300
"""Largest reward, and largest number of a verifier that counts: a hundred million can be summed."""


def is_countable(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be summed."""
    return isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST


class Say(Protocol):
    """How a run reports to people: a line of text, and the same as fields for programs."""

    def __call__(self, text: str, **fields: Any) -> None: ...


class Key(NamedTuple):
    """Identity of a rollout. It holds no row position, so sorting an input changes nothing.

    Example:

        print(rk.Key("00c0ffee00c0ffee", "my_agent", "", 0).rollout)
    """

    task_id: str
    agent: str
    scope: str
    rollout_index: int

    @property
    def rollout(self) -> tuple[str, int]:
        """Task id and index, as a session id carries them."""
        return self.task_id, self.rollout_index


class Task(NamedTuple):
    """One row of the input. `row` is what will be sent; `task_index` is its position among the
    distinct tasks."""

    task_id: str
    task_index: int
    line: int
    agent: str
    row: JsonObject
    first_rollout: int = 0
    """Index of this row's first repeat; above 0 if identical rows came before it."""


class Attempt(NamedTuple):
    """One try at a key that is owed.

    With a `stored` line only its verdict is owed; `is_copied` keeps that line as it is.
    """

    key: Key
    task: Task
    stored: JsonObject | None = None
    number: int = 1
    regenerated: bool = False
    """The stored response could not be verified alone, so the rollout is collected again."""
    is_copied: bool = False
    turns: Sequence[JsonObject] = ()
    """Turns of this rollout that an interrupted run has stored."""
    arm: JsonObject | None = None
    """What its line records of the arm: id, tags, seed and params."""
    redraws: int = 0
    """How often the model's answers so far were given up, so that it answers anew."""
    asked: str = ""
    """Name of the request for which it was put aside last."""
    times_aside: int = 0
    """For how many requests it was put aside."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """An attempt that goes on once a batch of a model server has ended."""

    attempt: Attempt
    server: str
    batch: str


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn of a rollout in progress, as its agent reported it; None: no turn so far counts."""

    key: Key
    task_index: int
    content: JsonObject | None = None

    @property
    def is_for_readers(self) -> bool:
        """Whether it is what came back for a turn, from which nothing continues."""
        return self.content is not None and RETURNED in self.content


class ArmInfo(NamedTuple):
    """The arm of a rollout: its id, tags, seed, and the create params that it was sampled with."""

    id: str
    tags: JsonObject
    seed: int | None
    params: JsonObject


class HeadField(NamedTuple):
    """What the declaration of a field of `RolloutInfo` says, beside its name and type."""

    about: str
    """What the reference says."""
    is_column: bool = False
    """Whether the index has a column of it."""
    is_mean: bool = False
    """Whether the metrics have its mean, for all rollouts and for each task."""
    latency: str = ""
    """Its name among the latencies of the metrics, if it is one."""


class RolloutInfo(NamedTuple):
    """The typed head of a line: identity, settings, usage, cost and timings (seconds).

    None means that the value is unknown: the agent or server did not report it. This is the only
    declaration of a head: a field that is added here is read from the `rollout` block of a line,
    and the index, the metrics, filters and the reference have it as its declaration says.

    Example:

        rollout = next(iter(rk.load("rollouts.jsonl")))
        print(rollout.info.duration_s, rollout.info.output_tokens)
    """

    key: Key
    task_index: int
    settings: Annotated[str, HeadField("Fingerprint of the settings.", is_column=True)]
    verifier: Annotated[str, HeadField("Fingerprint of the verifier.", is_column=True)]
    model: Annotated[str, HeadField("The model, as the endpoint names it.", is_column=True)]
    finish_reason: Annotated[
        str | None, HeadField("Why the last turn ended: stop, length, ….", is_column=True)
    ]
    started_at: Annotated[str, HeadField("When the agent was started, in UTC.")]
    attempt: Annotated[
        int, HeadField("Number of the attempt that succeeded, from 1.", is_column=True)
    ]
    duration_s: Annotated[
        float | None,
        HeadField("Time of agent and verifier together.", is_column=True, latency="rollout"),
    ]
    queue_s: Annotated[
        float | None,
        HeadField("Time between the first attempt and the one that succeeded.", latency="queue"),
    ]
    model_s: Annotated[
        float | None, HeadField("Time of all model calls.", is_column=True, latency="model")
    ]
    tool_s: Annotated[
        float | None, HeadField("Time of all tool calls.", is_column=True, latency="tool")
    ]
    verify_s: Annotated[
        float | None, HeadField("Time of the verifier.", is_column=True, latency="verify")
    ]
    rate_limit_s: Annotated[float | None, HeadField("Time spent waiting because of a rate limit.")]
    retry_s: Annotated[float | None, HeadField("Time spent on failed requests.")]
    first_turn_s: Annotated[float | None, HeadField("Time of the first model call.")]
    num_turns: Annotated[
        int | None, HeadField("Number of model calls.", is_column=True, is_mean=True)
    ]
    num_tool_calls: Annotated[
        int | None, HeadField("Number of tool calls.", is_column=True, is_mean=True)
    ]
    cached_tokens: Annotated[
        int | None,
        HeadField("Prompt tokens that were read from a cache.", is_column=True),
    ]
    cost_usd: Annotated[float | None, HeadField("Cost in US dollars.", is_column=True)]
    standard_usd: Annotated[
        float | None, HeadField("Cost at standard prices, without cache and batches.")
    ]
    replay_differences: Annotated[
        int, HeadField("Replayed tool calls whose answer differed from before.")
    ]
    version_first: Annotated[
        int | str | None, HeadField("The lowest version of the policy in the rollout.")
    ]
    version_last: Annotated[
        int | str | None, HeadField("The highest version of the policy in the rollout.")
    ]
    input_tokens: Annotated[int, HeadField("Number of prompt tokens.", is_column=True)]
    output_tokens: Annotated[int, HeadField("Number of answer tokens.", is_column=True)]
    total_tokens: Annotated[int, HeadField("Prompt and answer tokens together.", is_column=True)]
    scores: tuple[str, ...]
    """Names of the fields that the verifier set."""
    arm: ArmInfo | None = None


class GroupScore(NamedTuple):
    """What the verification of a rollout's group gave it. `reward` is None if it could not be
    scored; `figures` are those of the whole group."""

    reward: float | None
    components: JsonObject
    figures: JsonObject


class Rollout:
    """A finished rollout: its typed head, and its line. `group` is set where a stored rollout is
    read whose group has a current score. `labels` are what people have labelled it or its task
    with, and `scans` the scanners that found something in it.

    Example:

        rollout = next(iter(rk.load("rollouts.jsonl")))
        print(rollout.key.task_id, rollout.reward, rollout.text)
    """

    __slots__ = ("_find_scans", "_line", "group", "info", "labels")

    def __init__(
        self,
        info: RolloutInfo,
        line: JsonObject,
        group: GroupScore | None = None,
        labels: tuple[str, ...] = (),
        find_scans: Callable[[Key], tuple[str, ...]] | None = None,
    ) -> None:
        self.info, self._line, self.group, self.labels = info, line, group, labels
        self._find_scans = find_scans

    def __eq__(self, other: object) -> bool:
        is_one = isinstance(other, Rollout)
        return is_one and (self.info, self.line, self.group) == (
            other.info,
            other.line,
            other.group,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rollout({self.key}, reward={self.reward})"

    @property
    def line(self) -> JsonObject:
        """The JSON object that the journal writes."""
        return self._line

    @property
    def scans(self) -> tuple[str, ...]:
        """The names of the scanners of `ng_scan` that found something in it."""
        return self._find_scans(self.key) if self._find_scans else ()

    @property
    def head(self) -> JsonObject:
        """The reward and the scores, with whatever else is at hand of the line."""
        return self._line

    @property
    def key(self) -> Key:
        return self.info.key

    @property
    def reward(self) -> float | None:
        """The verdict on this rollout alone; None if it has none."""
        return self.head.get("reward")

    @property
    def group_reward(self) -> float | None:
        """The reward that its group's verification gave it; None if there is none."""
        return self.group.reward if self.group else None

    @property
    def training_reward(self) -> float | None:
        """What trainers get: the group's reward if its group was scored, else its own."""
        return self.group.reward if self.group else self.reward

    @property
    def response(self) -> JsonObject:
        """The Responses-API object: `output` holds the items of every turn."""
        return self.line["response"]

    @property
    def versions(self) -> Versions | None:
        """The policy's versions over all turns, least and greatest; None if they are unknown."""
        return versions_of(self.line["response"].get("output") or ())

    @property
    def text(self) -> str:
        """The text of all assistant messages of the response."""
        return output_text(self.line["response"])


@dataclass(frozen=True, slots=True)
class Unverified:
    """A response without a verdict yet; `error` is set if its verification failed.

    Example:

        def verify(task, response):
            raise rk.VerifyError("the judge is away", retryable=False)


        run = rk.collect(rows, model=lambda params: "4", verify=verify, stop_early=False)
        print([outcome.error async for outcome in run if isinstance(outcome, rk.Unverified)])
    """

    info: RolloutInfo
    line: JsonObject
    error: RolloutError | None = None
    verifier: str = ""
    """Fingerprint of the verifier that gave no verdict."""

    @property
    def key(self) -> Key:
        return self.info.key


@dataclass(frozen=True, slots=True)
class Failure:
    """A key without a result in this run: its last error, and a block for each attempt.

    Example:

        def ask(params):
            raise rk.ModelError("too long", retryable=False)


        table = await rk.collect(rows, model=ask, environment="string_match", stop_early=False)
        print([failure.error.message for failure in table.failures])
    """

    key: Key
    task_index: int
    error: RolloutError
    attempts: list[JsonObject] = field(default_factory=list)
    cost_usd: float | None = None
    """Cost of all attempts; None if it is unknown or no model was called."""
    settings: str = ""
    verifier: str = ""
    answered: JsonObject | None = None
    """The line of a response that the verifier refused permanently."""


Outcome = Rollout | Unverified | Failure

Result = Outcome | PutAside
"""What an attempt comes to."""


class OutcomeSink(Protocol):
    """Gets the outcomes of a run, those that ended together at once, when they are on disk and
    before anything else sees them. What it raises ends the run.

    Example:

        class Print:
            def append_all(self, outcomes):
                print([outcome.key for outcome in outcomes])


        await rk.collect(rows, model=lambda params: "4", environment="string_match", sink=Print())
    """

    def append_all(self, outcomes: Sequence[Outcome], /) -> object: ...
