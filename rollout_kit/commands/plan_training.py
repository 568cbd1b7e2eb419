"""ng_plan_training: compute the memory of a training, part by part."""

import json

from ..authoring.plan_training.training_plan import format_plan, plan
from ..config.keys import PlanTrainingConfig
from . import entry


def main(words: list[str]) -> int:
    made = plan(asked := entry.parse_keys(words, PlanTrainingConfig))
    print(json.dumps(made.to_json()) if asked.json_output else "\n".join(format_plan(made)))
    return 0 if made.fits else entry.FAILED
