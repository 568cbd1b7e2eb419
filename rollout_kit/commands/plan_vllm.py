"""ng_plan_vllm: compute whether a model fits on GPUs, and how many sequences it holds."""

import json

from ..authoring.plan_vllm import shown
from ..authoring.plan_vllm.plan import plan
from ..config.keys import PlanVllmConfig
from . import entry


def main(words: list[str]) -> int:
    asked = entry.parse_keys(words, PlanVllmConfig)

    made = plan(asked)
    if asked.json_output:
        print(json.dumps(shown.to_json(made)))
    else:
        print("\n".join(shown.format_plan(made)))
    return 0 if made.chosen else entry.FAILED
