"""What the rollouts of an output have cost, and what they would have cost without any of it: each
request at the standard price, nothing cached, nothing in batches, and all repeats."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import number_of
from ...session import Spent
from ...store.files import OutputPaths
from ...store.rollouts import RolloutFile, iterate_beside
from ...types import JsonObject, is_countable
from ..pacing.bill import Bill, dollars


@dataclass(frozen=True, slots=True)
class Savings:
    """US dollars; None if unknown, or if there is nothing to divide by."""

    usd: float | None
    verified: int
    """Rollouts with a reward."""
    usd_per_verified: float | None
    informative_groups: int
    """Tasks whose rollouts have different rewards."""
    usd_per_informative_group: float | None
    naive_usd: float | None
    """Each request at the standard price, without cache and batches, with all repeats."""

    @classmethod
    def of(
        cls, metrics: Mapping[str, Any], verified: int, informative: int, lost: Spent
    ) -> "Savings":
        """Those of the rollouts that the metrics are about, and of failures that cost `lost`."""
        cost = metrics.get("cost") or {"usd": 0.0, "unknown": 0, "standard_usd": 0.0}
        is_known = cost["usd"] is not None and not cost["unknown"] and not lost.unpriced
        usd = cost["usd"] + lost.usd if is_known else None
        standard = cost["standard_usd"]
        naive = None if standard is None or lost.unlisted else standard + lost.standard_usd
        number, decided = metrics["counts"]["rollouts"], _count_decided(metrics)
        if naive is not None and number:
            naive *= (number + decided) / number
        return cls(
            usd,
            verified,
            _divide(usd, verified),
            informative,
            _divide(usd, informative),
            naive,
        )

    def to_json(self) -> JsonObject:
        return asdict(self)

    def lines(self) -> list[str]:
        """Text for people."""
        if self.usd is None:
            return ["Cheapest: the price of some calls is not known, so no sums: give `prices`"]
        what = [dollars(self.usd)]
        if self.usd_per_verified is not None:
            over = number_of(self.verified, "verified rollout")
            what.append(f"{dollars(self.usd_per_verified)} for each of {over}")
        if self.usd_per_informative_group is None:
            what.append("no group has different rewards")
        else:
            over = number_of(self.informative_groups, "informative group")
            what.append(f"{dollars(self.usd_per_informative_group)} for each of {over}")
        naive = "Without it: not known, as the standard price of some calls is not"
        if self.naive_usd is not None:
            share = f", of which this is {self.usd / self.naive_usd:.0%}" if self.naive_usd else ""
            naive = f"Without it: {dollars(self.naive_usd)}{share}"
        why = "each request at the standard price, nothing cached, no batches, all repeats"
        return [f"Cheapest: {', '.join(what)}", f"{naive} ({why})"]


def _count_decided(metrics: Mapping[str, Any]) -> int:
    """Planned rollouts that a goal has made needless."""
    return (metrics.get("goal") or {}).get("rollouts_decided", 0)


def _divide(usd: float | None, number: int) -> float | None:
    return None if usd is None or not number else usd / number


def recall_costs(paths: OutputPaths) -> Bill:
    """What the rollouts of an output and its failures have cost, as far as that is known."""
    bill = Bill()
    if paths.main.is_file():
        for info in (each.info for each in RolloutFile(paths.main).rollouts()):
            if info.cost_usd is not None:
                bill.add(Spent(calls=1, tokens=info.total_tokens, usd=info.cost_usd))
    for line in iterate_beside(paths.failures, "failure"):
        cost = line.row.get("cost_usd") if line.kind == "failure" else None
        if is_countable(cost):
            bill.add(Spent(calls=1, usd=cost))
    return bill
