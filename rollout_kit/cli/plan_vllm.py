"""ng_plan_vllm: compute whether a model fits on GPUs, and how many sequences it holds."""

import json
import sys

from ..config.keys.planning import PlanVllmConfig
from . import entry


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard("ng_plan_vllm", arguments, lambda: _plan(arguments)))


def _plan(arguments: list[str]) -> int:
    asked = entry.parse_keys(arguments, PlanVllmConfig)
    from ..plan_vllm import shown  # not needed for --help
    from ..plan_vllm.plan import plan

    made = plan(asked)
    if asked.json_output:
        print(json.dumps(shown.to_json(made)))
    else:
        print("\n".join(shown.format_plan(made)))
    return 0 if made.chosen else entry.FAILED
