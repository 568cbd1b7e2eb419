"""The users of stored rollouts, which are replayed against another policy."""

from pathlib import Path

from rollout_kit.errors import ConfigError
from rollout_kit.serving.agents.user_simulator import StoredTurn, find_user_turns
from rollout_kit.store.rollouts import RolloutFile


def read_stored_users(path: Path) -> dict[tuple[str, int], list[StoredTurn]]:
    """Task id and repeat → the turns of the user. ConfigError if the file cannot be read, has no
    users, or has several for one repeat of a task."""
    found: dict[tuple[str, int], list[StoredTurn]] = {}
    for rollout in RolloutFile(path.expanduser()).rollouts():
        turns, key = find_user_turns(rollout.response["output"]), rollout.key
        if not turns:
            continue
        if found.setdefault(key.rollout, turns) != turns:
            raise ConfigError(
                f"{path}: the users of task {key.task_id}, repeat {key.rollout_index}, differ:"
                " it has rollouts of several agents or arms. Replay the file of one"
            )
    if not found:
        raise ConfigError(f"{path}: no rollout in it has a user: replay_fpath cannot be used")
    return found
