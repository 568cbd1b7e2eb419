"""Which answers are made for the tasks of a benchmark."""

from collections.abc import Callable

from rollout_kit.types import JsonObject

from .answers import Answers, calculate, choose, conclude, count, program
from .free_answers import (
    enter_contest,
    follow_rules,
    read_passage,
    repeat_text,
    solve_family,
    solve_puzzle,
    write_freely,
)

Maker = Callable[[JsonObject, int], Answers]
"""Makes answers to a task with that number."""

OF_SERVER: dict[str, Maker] = {
    "mcqa": choose,
    "math_with_verify": calculate,
    "string_match": count,
    "code_gen": program,
    "graded_answers": write_freely,
    "reasoning_gym": solve_family,
}

OF_BENCHMARK: dict[str, Maker] = {
    "bbh": conclude,
    "bbh_lm_eval": conclude,
    "mmlu_pro_lm_eval": conclude,
    "livecodebench": enter_contest,
    "livecodebench_v5_2408_2502": enter_contest,
    "livecodebench_v6_2408_2505": enter_contest,
    "drop": read_passage,
    "ifbench": follow_rules,
    "mrcr": repeat_text,
    "zebra_logic": solve_puzzle,
}
"""Where answers have another form than the verifier's others."""
