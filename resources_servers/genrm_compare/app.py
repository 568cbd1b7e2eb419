"""Responses to open questions, compared in pairs by a judge: there is no right answer, only a
better one.

A rollout has no reward of its own. Its group is scored once it is complete, so no request waits for
another one, and the pairs do not depend on the order in which rollouts end.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    VerifyError,
    content_texts,
    input_items,
    output_text,
)
from rollout_kit.serving.judge import JudgeModel, JudgeModelConfig, read_template
from rollout_kit.serving.service import OPERATIONAL, ServerRef
from rollout_kit.time_limit import within

from .judging import EVEN, PROMPT, Judgement, Strategy, add_up, choose_pairs, read_judgement

TEXT_LIMIT = 100_000
"""Only so many characters at the end of a response are judged."""

FIELDS = ("conversation", "response_1", "response_2", "principle")
"""Of a prompt template."""


class GenrmCompareConfig(JudgeModelConfig):
    judge_model_server: ServerRef = Field(
        ServerRef(type="responses_api_models", name="policy_model"),
        description="The model server that judges, preferably not the policy model.",
    )
    judge_responses_create_params: JsonObject = Field(
        default_factory=lambda: {"temperature": 0.0, "max_output_tokens": 2048},
        description="Request parameters of each question to the judge.",
    )
    judge_prompt_template_fpath: Path | None = Field(
        None,
        description="File with the prompt, which contains {conversation}, {response_1},"
        " {response_2}, {principle}.",
    )
    comparison_strategy: Strategy = Field(
        "circular", description="circular: N comparisons of N responses. all_pairs: every pair."
    )
    num_judges_per_comparison: int = Field(
        1,
        ge=1,
        description="Number of questions about each pair. Every second question has the other"
        " order.",
    )
    use_tiebreak: bool = Field(True, description="Let the ranking decide between equal scores.")
    default_score: float | None = Field(
        None,
        description="Score of each response if the judge's answer about the pair cannot be read."
        " null: the group has no score then, and the same command judges it again.",
    )
    group_timeout_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Time limit of all comparisons of a group. After it, the group has no score.",
    )


class GenrmCompare(ResourcesServer):
    """The reward of a response is its mean score over the comparisons with others of its group."""

    Config = GenrmCompareConfig
    config: GenrmCompareConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: GenrmCompareConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        path = config.judge_prompt_template_fpath
        self._template = read_template(path, Path(__file__).parent, FIELDS) if path else PROMPT
        self._model = JudgeModel(config, peers, name)

    async def verify_group(
        self, task: JsonObject, members: Sequence[Mapping[str, Any] | None]
    ) -> JsonObject:
        texts = [
            None if each is None else output_text(each["response"])[-TEXT_LIMIT:]
            for each in members
        ]
        there = [slot for slot, text in enumerate(texts) if text is not None]
        pairs = choose_pairs(there, self.config.comparison_strategy)
        asked = [
            (pair, number % 2 == 1)
            for pair in pairs
            for number in range(self.config.num_judges_per_comparison)
        ]
        try:
            with within(self.config.group_timeout_s):
                async with asyncio.TaskGroup() as judges:
                    waiting = [
                        judges.create_task(self._judge(task, texts, *pair, is_swapped))
                        for pair, is_swapped in asked
                    ]
        except TimeoutError:
            limit = self.config.group_timeout_s
            raise VerifyError(f"not judged within group_timeout_s={limit:g}") from None
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        judgements = [each.result() for each in waiting]
        found = add_up(judgements, len(members), breaks_ties=self.config.use_tiebreak)
        scores = [
            None if score is None else {"reward": score, "components": {"score": score}}
            for score in found.scores
        ]
        failures = sum(not each.is_parsed for each in judgements)
        figures = {
            "num_comparisons": len(judgements),
            "num_parse_failures": failures,
            "num_tie_breaks": found.tie_breaks,
            "comparisons": [each._asdict() for each in judgements],
        }
        return {"members": scores, "group": figures}

    async def _judge(
        self,
        task: JsonObject,
        texts: Sequence[str | None],
        first: int,
        second: int,
        is_swapped: bool,
    ) -> Judgement:
        """One comparison; with `is_swapped` the judge sees the second response first."""
        shown = (second, first) if is_swapped else (first, second)
        principle = str(task.get("principle") or "")
        text = self._template.format(
            conversation=_conversation(task["responses_create_params"]),
            response_1=texts[shown[0]],
            response_2=texts[shown[1]],
            principle=f"\nAbove all: {principle}\n" if principle else "",
        )
        _, response = await self._model.ask([{"role": "user", "content": text}])
        found = read_judgement(said := output_text(response))
        if found is None:
            if (score := self.config.default_score) is None:
                what = "gave no scores that can be read"
                raise self._model.refuse(what, body=said, is_final=True)
            return Judgement(first, second, score, score, EVEN, is_parsed=False)
        one, two, ranking = found
        if is_swapped:
            one, two, ranking = two, one, 2 * EVEN - ranking
        return Judgement(first, second, one, two, ranking)


def _conversation(params: JsonObject) -> str:
    said = (
        (item.get("role"), "\n".join(content_texts(item.get("content"))))
        for item in input_items(params)
    )
    return "\n\n".join(f"{role}: {text}" for role, text in said if role)
