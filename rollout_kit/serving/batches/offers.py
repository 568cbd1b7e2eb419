"""What makes the requests to a model cheaper, as far as its prices and its server's keys say so."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from ...types import JsonObject
from ..endpoints.prices import BATCH, FLEX, STANDARD, Tariff
from .batch_keys import BatchKeys


@dataclass(frozen=True, slots=True)
class Offer:
    """Batches, the service tier flex, and cached prompts. Each text says why there is none; it is
    empty where there is one."""

    batch: str
    flex: str
    cache: str

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """The offer in a server's description; None if it has no valid one."""
        names = [each.name for each in fields(cls)]
        if not isinstance(value, dict) or not all(isinstance(value.get(n), str) for n in names):
            return None
        return cls(*(value[name] for name in names))


def find_offer(config: BatchKeys, tariff: Tariff | None) -> Offer:
    """What a model of this price has, where its server has these keys."""
    unknown = "its price is not known: give its server `prices`"
    tiers = {} if tariff is None else tariff.tiers
    lacks = {tier: "" if tier in tiers else f"its prices have no {tier}" for tier in (BATCH, FLEX)}
    if tariff is None:
        lacks = dict.fromkeys(lacks, unknown)
    named = [key for key in ("stream", "service_tier") if getattr(config, key, None)]
    batch = lacks[BATCH]
    if named:
        batch = f"its key {named[0]} means nothing in a batch"
    elif config.batch or config.batch_files:
        batch = ""
    elif "batch" in config.model_fields_set:
        batch = "its key batch is false"
    flex = lacks[FLEX]
    if tier := getattr(config, "service_tier", None):
        flex = f"its key service_tier is {tier}"
    cache = unknown
    if tariff is not None:
        rates = tariff.tiers[STANDARD][0]
        is_cheaper = rates.cached_input < rates.input
        cache = "" if is_cheaper else "its prices have no cheaper cached input"
    if getattr(config, "prompt_caching", None) == "off":
        cache = "its key prompt_caching is off"
    return Offer(batch, flex, cache)
