"""gym: NeMo Gym's spelling of commands and flags, translated into ours.

`gym eval run --input tasks.jsonl` prints the command of ours that it means, and runs it.
"""

import shlex
import sys

from ..errors import ConfigError, suggest
from .entry import guard, print_table, run

COMMANDS = {
    "env start": "ng_run",
    "env run": "ng_run",
    "env status": "ng_status",
    "env stop": "ng_stop",
    "env validate": "ng_validate",
    "env resolve": "ng_dump_config",
    "env init": "ng_init_resources_server",
    "env test": "ng_test",
    "eval run": "ng_collect_rollouts",
    "eval prepare": "ng_prepare_data",
    "eval aggregate": "ng_aggregate_rollouts",
    "eval reverify": "ng_reverify",
    "eval compare": "ng_compare",
    "eval health-check": "ng_check_rollouts",
    "dataset collate": "ng_prepare_data",
    "list benchmarks": "ng_list +kind=benchmark",
    "list environments": "ng_list +kind=environment",
    "list agents": "ng_list +kind=agent",
    "list models": "ng_list +kind=model",
}
"""Its words → our command."""

FLAGS = {
    "--agent": "agent_name",
    "-a": "agent_name",
    "--input": "input_jsonl_fpath",
    "-i": "input_jsonl_fpath",
    "--output": "output_jsonl_fpath",
    "-o": "output_jsonl_fpath",
    "--limit": "limit",
    "--num-repeats": "num_repeats",
    "--concurrency": "num_samples_in_parallel",
    "--prompt-config": "prompt_config",
    "--model": "policy_model_name",
    "-m": "policy_model_name",
    "--model-url": "policy_base_url",
    "--model-api-key": "policy_api_key",
    "--temperature": "responses_create_params.temperature",
    "--top-p": "responses_create_params.top_p",
    "--max-output-tokens": "responses_create_params.max_output_tokens",
    "--benchmark": "benchmark",
    "--resources-server": "resources_server_name",
}
"""Its flag → our key."""

WITHOUT_VALUE = {"--resume": "", "--no-serve": "", "--disable-aggregation": "disable_aggregation"}
"""Flags without a value → our key; empty for what happens anyway."""

OVERRIDES = ("+", "~")


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    asks_for_list = not arguments or set(arguments) <= {"--help", "-h"}
    run = _list_commands if asks_for_list else lambda: _run(arguments)
    sys.exit(guard("ng_help", _without_help(arguments), run))


def _list_commands() -> int:
    print("Commands of NeMo Gym, and ours:")
    print_table([(f"  gym {theirs}", ours) for theirs, ours in COMMANDS.items()])
    return 0


def _without_help(arguments: list[str]) -> list[str]:
    """Words that ask for help are for the command."""
    return [word for word in arguments if word[:1] in OVERRIDES and "help" not in word]


def _run(arguments: list[str]) -> int:
    name, *words = translate(arguments)
    secret = "+policy_api_key="
    shown = [f"{secret}…" if word.startswith(secret) else word for word in words]
    print(f"rollout_kit runs: {shlex.join([name, *shown])}", file=sys.stderr)
    return guard(name, words, lambda: run(name, words))


def translate(arguments: list[str]) -> list[str]:
    """Our command and its words; ConfigError for a word that has no counterpart."""
    if arguments[0] in ("--version", "-V"):
        return ["ng_version"]
    if arguments[0] == "list" and len(arguments) == 1:
        return ["ng_list"]
    theirs = " ".join(arguments[:2])
    if theirs not in COMMANDS:
        raise ConfigError(
            f"gym {theirs}: has no counterpart here{suggest(theirs, COMMANDS)}; gym --help lists"
            " those that have, ng_help all commands"
        )
    configs: list[str] = []
    words = []
    rest = iter(arguments[2:])
    for word in rest:
        flag, has_value, value = word.partition("=")
        if word[:1] in OVERRIDES or word in ("--help", "-h") or word[:1] != "-":
            words.append(word)
        elif flag in WITHOUT_VALUE:
            words += [f"+{key}=true" for key in [WITHOUT_VALUE[flag]] if key]
        elif flag in FLAGS or flag == "--config":
            value = value if has_value else next(rest, "")
            if not value:
                raise ConfigError(f"gym {theirs}: {flag} needs a value")
            if flag == "--config":
                configs.append(value)
            else:
                words.append(f"+{FLAGS[flag]}={value}")
        else:
            known = [*FLAGS, *WITHOUT_VALUE, "--config"]
            raise ConfigError(
                f"gym {theirs}: {flag} has no counterpart here{suggest(flag, known)};"
                f" {COMMANDS[theirs].split()[0]} --help lists its keys"
            )
    listed = [f"+config_paths=[{','.join(configs)}]"] if configs else []
    return [*COMMANDS[theirs].split(), *listed, *words]
