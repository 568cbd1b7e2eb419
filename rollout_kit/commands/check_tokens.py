"""Score the tokens of stored rollouts again by the policy, and compare the log-probs."""

from itertools import islice

from ..api.load import load
from ..config.keys.commands import CheckTokensConfig
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import reach
from ..rl.checking import TOLERANCE, check_tokens
from ..rl.reference import score_with
from ..types import JsonObject, Say


async def check_file(config: Config[CheckTokensConfig], say: Say) -> JsonObject:
    """What a check of the file found; ConfigError if it holds no token ids."""
    command = config.command
    if not command.input_jsonl_fpath:
        raise ConfigError("input_jsonl_fpath is missing: name the rollouts to check")
    rollouts = islice(load(command.input_jsonl_fpath), command.limit or None)
    async with reach(config, command, say) as servers:
        score = score_with(servers.peers, command.model_server)
        found = await check_tokens(rollouts, score)
    if not found.num_turns:
        raise ConfigError(
            f"{command.input_jsonl_fpath} has no token ids: collect it with return_token_ids: true"
        )
    return found.to_json()


def format_check(found: JsonObject) -> str:
    """The result for people."""
    lines = [
        f"{found['num_turns']:,} turns, {found['num_tokens']:,} sampled tokens",
        f"{found['matched']:,} turns have the policy's log-probs, {found['mismatched']:,} differ by"
        f" more than {TOLERANCE:g}; largest difference {found['worst']:.1e}",
    ]
    if found["spanning"]:
        lines.append(
            f"{found['spanning']:,} turns span an update of the weights, so no policy scores them"
            f" alike; largest difference {found['spanning_worst']:.1e}"
        )
    if found["without_version"]:
        lines.append(f"{found['without_version']:,} turns name no version")
    lines += [f"{number:,} turns not scored: {why}" for why, number in found["not_scored"].items()]
    return "\n".join(lines)
