"""ng_plan_vllm: will a model fit on these GPUs, and how many sequences with it."""

import json
import sys

from ..config.keys.commands import PlanVllmConfig
from . import entry


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guarded("ng_plan_vllm", arguments, lambda: _plan(arguments)))


def _plan(arguments: list[str]) -> int:
    asked = entry.flags(arguments, PlanVllmConfig)
    from ..plan_vllm import shown  # not needed to print the help
    from ..plan_vllm.plan import plan

    assert isinstance(asked, PlanVllmConfig)
    made = plan(asked)
    if asked.json_output:
        print(json.dumps(shown.figures(made)))
    else:
        print("\n".join(shown.lines(made)))
    return 0 if made.chosen else entry.FAILED
