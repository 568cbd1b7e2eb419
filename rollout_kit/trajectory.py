"""Token ids and log-probs of a response: the fields of its items, and how to read them.

The last item of each turn has `generation_token_ids` (as sampled, with the token that ended the
turn), `generation_log_probs` (one each) and, if known, `generation_temperature`. The prompt is
`prompt_token_ids`; if it begins with the previous turn's prompt and generation, only the rest is
kept, as `prompt_suffix_token_ids`. If a later turn's prompt begins otherwise, `prompt_restart` says
why. If no end of turn was sampled, `generation_stopped_by` is `length` or the stop condition.
A run with a teacher adds its log-probs of the same tokens, as `generation_teacher_log_probs`.

With or without token ids, the item has `policy_version_first` and `policy_version_last` where the
model server knows the version of its weights: those in use when the turn began and when it ended.
If they differ and the engine tells which token has which, `policy_version_spans` says so: a list of
`[start, end, version]` over the turn's generation.

Token ids travel on the items, not in a model server's memory. So they survive restarts and work
with replicas, and an agent that edits the conversation cannot get the tokens of another one.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, NamedTuple

from .errors import RolloutError
from .responses import JsonObject

PROMPT, SUFFIX, RESTART = "prompt_token_ids", "prompt_suffix_token_ids", "prompt_restart"
GENERATION, LOG_PROBS = "generation_token_ids", "generation_log_probs"
TEMPERATURE, STOPPED_BY = "generation_temperature", "generation_stopped_by"
VERSION_FIRST, VERSION_LAST = "policy_version_first", "policy_version_last"
VERSION_SPANS = "policy_version_spans"
TEACHER = "generation_teacher_log_probs"
"""The log-probs of another model for the tokens that were sampled, if a run has a teacher."""

TOKEN_FIELDS = frozenset(
    {
        PROMPT,
        SUFFIX,
        RESTART,
        GENERATION,
        LOG_PROBS,
        TEMPERATURE,
        STOPPED_BY,
        VERSION_SPANS,
        TEACHER,
    }
)


def without_tokens(tree: Any) -> Any:
    """A copy of a response, or of anything that holds one, without token ids and log-probs."""
    if isinstance(tree, dict):
        return {
            name: without_tokens(value) for name, value in tree.items() if name not in TOKEN_FIELDS
        }
    return [without_tokens(value) for value in tree] if isinstance(tree, list) else tree


class Versions(NamedTuple):
    """The least and the greatest version of the policy's weights in a turn, rollout or group."""

    first: int
    last: int

    def stamp(self, output: list[JsonObject]) -> None:
        """Write the versions on the last item of a turn."""
        if output:
            output[-1] |= {VERSION_FIRST: self.first, VERSION_LAST: self.last}


class VersionSpan(NamedTuple):
    """The tokens of a turn's generation that weights of one version have sampled."""

    start: int
    end: int
    version: int


def stamp_tokens(output: list[JsonObject], versions: Sequence[int | None]) -> None:
    """Write the version of each token on the last item of a turn; nothing if one is unknown."""
    known = [version for version in versions if version is not None]
    if not output or not known or len(known) < len(versions):
        return
    Versions(min(known), max(known)).stamp(output)
    spans: list[VersionSpan] = []
    for version, run in groupby(known):
        start = spans[-1].end if spans else 0
        spans.append(VersionSpan(start, start + len(list(run)), version))
    if len(spans) > 1:
        output[-1][VERSION_SPANS] = [list(span) for span in spans]


def span_versions(each: Iterable[Versions | None]) -> Versions | None:
    """The versions of a whole from those of its parts; None if no part has any."""
    known = [versions for versions in each if versions is not None]
    if not known:
        return None
    return Versions(min(one.first for one in known), max(one.last for one in known))


def versions_of(items: Iterable[Any]) -> Versions | None:
    """The versions of all turns in a response's output; None if they are unknown."""
    known = [
        Versions(first, item.get(VERSION_LAST, first))
        for item in items
        if isinstance(item, dict) and isinstance(first := item.get(VERSION_FIRST), int)
    ]
    return span_versions(known) if known else None


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """`added` are the token ids of the prompt that follow the previous turn of the sequence."""

    added: list[int]
    generation: list[int]
    log_probs: list[float]
    temperature: float | None
    is_ended: bool
    """Whether the model sampled a token that ends the turn."""
    versions: Versions | None = None
    """Those of the weights when the turn began and when it ended; None if unknown."""
    spans: Sequence[VersionSpan] = ()
    """Which tokens have which version, if there are several and the engine tells."""
    teacher: Sequence[float] = ()
    """The teacher's log-prob of each sampled token, if the run had a teacher."""

    @property
    def token_versions(self) -> list[int]:
        """Of each sampled token; -1 if it is unknown, and the least of a turn without spans."""
        if self.spans:
            return [span.version for span in self.spans for _ in range(span.start, span.end)]
        return [-1 if self.versions is None else self.versions.first] * len(self.generation)

    @property
    def version_first(self) -> int | None:
        return self.versions.first if self.versions else None

    @property
    def version_last(self) -> int | None:
        return self.versions.last if self.versions else None


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence to train on: each turn's prompt contains all tokens of the turns before it."""

    turns: list[SampledTurn]

    @property
    def token_ids(self) -> list[int]:
        return list(chain.from_iterable((*turn.added, *turn.generation) for turn in self.turns))

    @property
    def versions(self) -> Versions | None:
        """Of all turns; None if they are unknown."""
        return span_versions(turn.versions for turn in self.turns)

    @property
    def is_generated(self) -> list[bool]:
        """For each token: whether the policy sampled it."""
        return self._spread(False, lambda turn: [True] * len(turn.generation))

    @property
    def log_probs(self) -> list[float]:
        """For each token: its log-prob as sampled; 0 if it was not sampled."""
        return self._spread(0.0, lambda turn: turn.log_probs)

    @property
    def teacher_log_probs(self) -> list[float]:
        """For each token: the teacher's log-prob; 0 if it was not sampled. Empty without one."""
        if not all(turn.teacher for turn in self.turns):
            return []
        return self._spread(0.0, lambda turn: turn.teacher)

    @property
    def token_versions(self) -> list[int]:
        """For each token: the version that sampled it; -1 if none did, or if it is unknown."""
        return self._spread(-1, lambda turn: turn.token_versions)

    def pair_turns(self) -> Iterator[tuple[list[int], SampledTurn]]:
        """Each turn with its whole prompt."""
        known: list[int] = []
        for turn in self.turns:
            prompt = [*known, *turn.added]
            known = [*prompt, *turn.generation]
            yield prompt, turn

    def _spread(self, otherwise: Any, of: Any) -> list[Any]:
        return [each for turn in self.turns for each in (*[otherwise] * len(turn.added), *of(turn))]


def sequences(items: Iterable[Mapping[str, Any]]) -> list[TokenSequence]:
    """The token sequences of a response's output, or of an input that holds earlier turns.

    A turn with a whole prompt continues the sequence if the prompt begins with its tokens, and no
    restart is noted. ValueError if a turn with a prompt suffix has no turn before it.
    """
    found: list[TokenSequence] = []
    for item in items:
        if GENERATION not in item:
            continue
        added = item.get(SUFFIX)
        if added is None:
            prompt = item[PROMPT] or []
            known = found[-1].token_ids if found else []
            is_noted = RESTART in item
            continues = bool(known) and not is_noted and prompt[: len(known)] == known
            added = prompt[len(known) :] if continues else prompt
        elif not (continues := bool(found)):
            raise ValueError(f"an item has {SUFFIX}, but the turn that it continues is missing")
        log_probs, heat = item.get(LOG_PROBS) or [], item.get(TEMPERATURE)
        turn = SampledTurn(
            added,
            item[GENERATION],
            log_probs,
            heat,
            STOPPED_BY not in item,
            versions_of([item]),
            _read_spans(item),
            item.get(TEACHER) or (),
        )
        if continues:
            found[-1].turns.append(turn)
        else:
            found.append(TokenSequence([turn]))
    return found


async def add_teacher(
    output: Sequence[JsonObject], score: Callable[[JsonObject], Awaitable[JsonObject]]
) -> None:
    """Write the log-probs of another model for the sampled tokens onto the turns of a response.
    `score` is its `POST /score_tokens`."""
    if not (made := [item for item in output if GENERATION in item]):
        what = "the response has no token ids for it: set return_token_ids of the model server"
        raise RolloutError(f"teacher: {what}", retryable=False)
    turns = iter(made)
    for sequence in sequences(output):
        asked = {"token_ids": sequence.token_ids, "temperature": 1.0, "version": None}
        scored = [0.0, *(await score(asked))["log_probs"]]
        if len(scored) != len(sequence.token_ids):
            what = f"{len(scored) - 1} log-probs for {len(sequence.token_ids)} tokens"
            raise RolloutError(f"teacher: {what}, which must be one less", retryable=False)
        end = 0
        for turn, item in zip(sequence.turns, turns, strict=False):
            start = end + len(turn.added)
            end = start + len(turn.generation)
            item[TEACHER] = scored[start:end]


def has_teacher(output: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the sampled tokens of a response have a teacher's log-probs."""
    made = [item for item in output if GENERATION in item]
    return bool(made) and all(TEACHER in item for item in made)


def _read_spans(item: Mapping[str, Any]) -> list[VersionSpan]:
    """The spans of a turn, if they cover its tokens."""
    spans = [VersionSpan(*each) for each in item.get(VERSION_SPANS) or ()]
    ends = [0, *(span.end for span in spans)]
    is_whole = ends[-1] == len(item[GENERATION]) and ends[:-1] == [span.start for span in spans]
    return spans if is_whole else []


def prompt_fields(prompt: list[int], before: TokenSequence | None, restart: str) -> JsonObject:
    """The fields for a turn's prompt; `restart` is the reason if it does not continue `before`."""
    known = before.token_ids if before else []
    if known and prompt[: len(known)] == known:
        return {SUFFIX: prompt[len(known) :]}
    return {PROMPT: prompt, RESTART: restart} if restart else {PROMPT: prompt}


class ModelCall(NamedTuple):
    """One turn of a rollout: a call of a model, and the tools that it called. None: unknown."""

    to: int | None = None
    """Where it ends in the output: the number of items up to its last one."""
    start_s: float | None = None
    """When it began, in seconds since the agent was asked."""
    model_s: float | None = None
    tool_s: float | None = None
    waited_s: float | None = None
    """Time that rate limits and failed tries took."""
    input: int | None = None
    """Tokens of the prompt, `cached` ones included."""
    cached: int | None = None
    output: int | None = None
    cost_usd: float | None = None
    finish: str | None = None
    """Why the reply ended: stop, tool_calls, or the reason that it is incomplete."""
    tries: int | None = None
    version: int | str | None = None
    """The policy's version."""
    chain: int | None = None
    """0 for the main conversation; others are those of its own that an agent began beside it."""
    model: str | None = None
    by: str | None = None
    """Who was asked: policy, judge or user."""


OF_TIME = frozenset(name for name in ModelCall._fields if name.endswith("_s"))
OF_SEVERAL = frozenset({"model", "by"})
"""Fields that say something only where the calls of a rollout differ in them."""


def pack_turns(calls: Sequence[ModelCall]) -> JsonObject:
    """The turns of a rollout as its line has them: an array for each field, one entry a call.

    A field that is unknown of all calls has no array. `finish` holds numbers of `finish_names`;
    `model` and `by` are there only where calls differ in them.
    """
    found: JsonObject = {}
    if len(calls) == 1:
        [call] = calls
        for name, value in zip(ModelCall._fields, call, strict=True):
            if value is None or name in OF_SEVERAL:
                continue
            if name == "finish":
                found["finish_names"], value = [value], 0
            found[name] = [_millis(value) if name in OF_TIME else value]
        return found
    for name, values in zip(ModelCall._fields, zip(*calls, strict=True), strict=False):
        if values.count(None) == len(values):
            continue
        if name in OF_TIME:
            found[name] = [None if value is None else _millis(value) for value in values]
        elif name == "finish":
            names = list(dict.fromkeys(value for value in values if value is not None))
            found["finish_names"] = names
            found["finish"] = [None if value is None else names.index(value) for value in values]
        elif name not in OF_SEVERAL or len(set(values)) > 1:
            found[name] = list(values)
    return found


def _millis(seconds: Any) -> float:
    return int(seconds * 1e3 + 0.5) / 1e3


def read_turns(turns: Any) -> list[ModelCall]:
    """The calls of what `pack_turns` has made; none if it is nothing of the kind."""
    if not isinstance(turns, dict):
        return []
    names = turns.get("finish_names") or []
    arrays = {
        name: array for name in ModelCall._fields if isinstance(array := turns.get(name), list)
    }
    number = max(map(len, arrays.values()), default=0)
    found: list[ModelCall] = []
    for at in range(number):
        own = {name: array[at] for name, array in arrays.items() if at < len(array)}
        if (code := own.get("finish")) is not None:
            own["finish"] = names[code] if code in range(len(names)) else None
        found.append(ModelCall(**own))
    return found
