"""Rows of datasets that need more than a mapping: `reader: NAME` in a definition."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from string import ascii_uppercase

from ....types import JsonObject
from .code_rows import read_livecodebench, read_mbpp

Reader = Callable[[JsonObject], JsonObject]

Join = Callable[[Iterable[JsonObject]], Iterator[JsonObject]]
"""Makes rows of the rows of several files."""

KINDS = {
    "Numerical": "a numerical value",
    "Expression": "an expression",
    "Equation": "an equation",
    "Interval": "an interval",
}
"""Type of an answer in OlympiadBench → how the prompt describes it."""

EASY = frozenset({"2*2", "2*3", "2*4", "2*5", "2*6", "3*2", "3*3"})
"""Sizes of ZebraLogic's easy puzzles."""


def read_mmlu_redux(row: JsonObject) -> JsonObject:
    """With `right`, the letter of the corrected answer, or the letters of all that are right."""
    choices, given = [*row["choices"]], int(row["answer"])
    corrected, error = str(row.get("correct_answer") or ""), row["error_type"]
    found = [given]
    if corrected and error == "no_correct_answer":
        choices[given] = corrected
    elif corrected and error == "wrong_groundtruth":
        found = [_to_place(corrected)]
    elif corrected and error == "multiple_correct_answers":
        text = corrected.strip("()").replace(" and ", ",").replace(" or ", ",")
        found = [_to_place(word) for word in text.replace(",", " ").split()]
    right = [ascii_uppercase[place] for place in found]
    return {**row, "choices": choices, "right": right[0] if len(right) == 1 else right}


def _to_place(text: str) -> int:
    """The index of an option that is given as one, or as a letter."""
    return int(text) if text.isdecimal() else ascii_uppercase.index(text.strip().upper())


def read_olympiad_bench(row: JsonObject) -> JsonObject:
    """With `answer`, and `kind`, `form` and `unit_text` for the prompt."""
    several, unit = bool(row["is_multiple_answer"]), row.get("unit")
    form = "\\boxed{multiple answers connected with commas}" if several else "\\boxed{answer}"
    note = ", note that the unit of the answer should not be included in \\boxed{}"
    return {
        **row,
        "answer": row["final_answer"][0],
        "kind": _describe_answer(row["answer_type"], several),
        "form": form + ("(unit)" if unit else ""),
        "unit_text": note if unit else "",
    }


def _describe_answer(given: str, several: bool) -> str:
    if "Need_human_evaluate" in given or "Tuple" in given:
        return ""
    kinds = [_name_kind(each) for each in (given.split(",") if several else [given])]
    if not several:
        return f"The answer of The problem should be {kinds[0]}. "
    if len(set(kinds)) == 1:
        return f"The problem has multiple answers, each of them should be {kinds[0]}. "
    listed = ", ".join(kinds)
    return f"The problem has multiple answers, with the answers in order being {listed}. "


def _name_kind(given: str) -> str:
    for name, text in KINDS.items():
        if name in given.partition("-")[0]:
            return text
    raise ValueError(f"the type of its answer is {given!r}, which is none of {', '.join(KINDS)}")


def read_drop(row: JsonObject) -> JsonObject:
    """With `answers`, each a list of spans: the published one, and those of validators."""
    given = row["validated_answers"]
    columns = {name: given.get(name) or [] for name in ("number", "date", "spans")}
    listed = zip(*columns.values(), strict=False)
    others = [dict(zip(columns, each, strict=True)) for each in listed]
    found = dict.fromkeys(tuple(_list_spans(each)) for each in (row["answer"], *others))
    if not any(each[0].strip() for each in found):
        raise ValueError("it has no answer")
    return {**row, "answers": [[*each] for each in found]}


def _list_spans(answer: JsonObject) -> list[str]:
    if answer["number"] != "":
        return [str(answer["number"])]
    date = answer["date"]
    return [*answer["spans"]] or [f"{date['day']} {date['month']} {date['year']}".strip()]


def read_zebra_logic(row: JsonObject) -> JsonObject:
    """With `cells` of the solution, `form`, how an answer looks, and `difficulty`."""
    head, *columns = row["solution"]["header"]
    if head != "House":
        raise ValueError(f"the first column of its solution is {head!r}, and not 'House'")
    cells = {
        f"House {number}": dict(zip(columns, house[1:], strict=True))
        for number, house in enumerate(row["solution"]["rows"], 1)
    }
    blank = {house: dict.fromkeys(columns, "___") for house in cells}
    size = f"{len(cells)}*{len(columns)}"
    return {
        **row,
        "cells": cells,
        "form": json.dumps({"reasoning": "___", "solution": blank}, indent=4),
        "size": size,
        "difficulty": "easy" if size in EASY else "hard",
    }


def read_mrcr(row: JsonObject) -> JsonObject:
    """With `messages`, the conversation as a list."""
    messages = json.loads(row["prompt"])
    return {
        **row,
        "messages": [{name: one[name] for name in ("role", "content")} for one in messages],
    }


def read_reasoning_gym(row: JsonObject) -> JsonObject:
    """With `family`, and `gold_output` where the row has an answer."""
    gold = {} if row.get("answer") is None else {"gold_output": f"<answer>{row['answer']}</answer>"}
    return {**row, "family": row["metadata"]["source_dataset"], **gold}


BASELINES = {
    "hard_prompt": "model_answer/o3-mini-2025-01-31",
    "creative_writing": "model_answer/gemini-2.0-flash-001",
}
"""Category of Arena-Hard → the file with the baseline's answers."""


def join_arena_hard(rows: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The questions with `baseline_answer`."""
    of_part: defaultdict[str, dict[str, JsonObject]] = defaultdict(dict)
    for row in rows:
        of_part[row["part"]][row["uid"]] = row
    for uid, row in of_part["question"].items():
        answer = of_part[BASELINES[row["category"]]].get(uid)
        if answer is None:
            raise ValueError(f"the baseline has no answer to {uid}")
        [said, *_] = [m["content"] for m in answer["messages"] if m["role"] == "assistant"]
        text = said["answer"] if isinstance(said, dict) else said
        yield {**row, "question": row["prompt"], "baseline_answer": text}


JOINS: dict[str, Join] = {"arena_hard": join_arena_hard}
"""Name → what joins rows of several files, in place of a reader."""

READERS: dict[str, Reader] = {
    "drop": read_drop,
    "livecodebench": read_livecodebench,
    "mbpp": read_mbpp,
    "mmlu_redux": read_mmlu_redux,
    "mrcr": read_mrcr,
    "olympiad_bench": read_olympiad_bench,
    "reasoning_gym": read_reasoning_gym,
    "zebra_logic": read_zebra_logic,
}
"""Name → what makes a row of it. It raises ValueError, KeyError or TypeError for one it cannot."""
