"""What a second verification changed: old rewards compared with new ones, in a few counters."""

from dataclasses import dataclass

from ...types import JsonObject, Rollout


@dataclass(slots=True)
class Comparison:
    """Counts of rollouts that had a verdict and have a new one; first verdicts count apart."""

    up: int = 0
    down: int = 0
    same: int = 0
    before: float = 0.0
    after: float = 0.0
    first: int = 0
    replay_differences: int = 0
    """Rollouts whose tools gave other answers when their calls were replayed."""

    def add(self, old: float | None, rollout: Rollout) -> None:
        """Count one rollout; `old` is the reward that it had."""
        if rollout.info.replay_differences:
            self.replay_differences += 1
        new = rollout.reward
        if new is None:
            return
        if old is None:
            self.first += 1
            return
        self.before += old
        self.after += new
        self.up += new > old
        self.down += new < old
        self.same += new == old

    @property
    def compared(self) -> int:
        return self.up + self.down + self.same

    def figures(self) -> JsonObject:
        """For the metrics file."""
        means = {}
        if self.compared:
            means = {"before": self.before / self.compared, "after": self.after / self.compared}
        return {
            "compared": self.compared,
            "reward": means,
            "up": self.up,
            "down": self.down,
            "same": self.same,
            "first_verdicts": self.first,
            "replay_differences": self.replay_differences,
        }

    def lines(self) -> list[str]:
        """Text for people, one line per finding."""
        said = []
        if self.compared:
            before, after = self.before / self.compared, self.after / self.compared
            said.append(
                f"Verdicts: mean reward {before:.4f} → {after:.4f} ({after - before:+.4f}) over"
                f" {self.compared:,} verified again: {self.up:,} up, {self.down:,} down,"
                f" {self.same:,} the same"
            )
        if self.first:
            said.append(f"First verdicts: {self.first:,}")
        if self.replay_differences:
            said.append(
                f"Replays: the tools of {self.replay_differences:,} gave other answers than when"
                " they were collected ('replay_differences' in the line); they are verified anyway"
            )
        return said
