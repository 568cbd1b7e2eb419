"""The cost of a model's answers: US dollars per token, by service tier.

A price comes from the model server's `prices` or from the table of the package `genai-prices`,
which works offline. The package is imported only when a hosted model needs a price.

The server that answers a call computes its cost, because tier, cached tokens and length belong to
one request. Sessions sum it, so judges and failed attempts are included.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import ModelError
from ...session import Spent
from ...types import JsonObject

MILLION = 1e6
"""Number of tokens that quoted prices refer to."""

STANDARD, BATCH, FLEX = "standard", "batch", "flex"

TIERS: dict[str, dict[str, str]] = {
    STANDARD: {},
    BATCH: {"processing": "batch"},
    FLEX: {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
    "fast": {"service_tier": "fast", "speed": "fast"},
    "ultrafast": {"service_tier": "ultrafast"},
}
"""Service tier → its conditions in the price table, by the names of all providers."""


class Prices(BaseModel):
    """A model server's `prices`, in US dollars per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: float | None = Field(default=None, ge=0, description="Of input tokens.")
    output: float | None = Field(
        default=None, ge=0, description="Of output tokens, reasoning included."
    )
    cached_input: float | None = Field(
        default=None,
        ge=0,
        description="Of input tokens read from a cache; like input if not given.",
    )
    cache_write: float | None = Field(
        default=None,
        ge=0,
        description="Of input tokens written to a cache; like input if not given.",
    )
    cache_write_1h: float | None = Field(
        default=None,
        ge=0,
        description="Of those that are kept for an hour; like cache_write if not given.",
    )
    factors: dict[str, float] = Field(
        default={}, description="Service tier → factor on the standard price: {batch: 0.5}."
    )
    provider: str | None = Field(
        default=None,
        description="Provider by its name in the price table, for a gateway's URL.",
    )
    model: str | None = Field(
        default=None,
        description="The model's name in the price table, if it differs.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.input is None) != (self.output is None):
            raise ValueError("give both input and output, or neither")
        cached = (self.cached_input, self.cache_write, self.cache_write_1h)
        if self.input is None and cached != (None, None, None):
            raise ValueError("cached_input and cache_write need input and output beside them")
        if self.input is not None and (self.provider or self.model):
            raise ValueError("give prices, or the provider and model to look up, and not both")
        if any(factor < 0 for factor in self.factors.values()):
            raise ValueError("factors must not be negative")
        return self


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per token, for requests with more than `above` input tokens."""

    above: int
    input: float
    cached_input: float
    cache_write: float
    output: float
    cache_write_1h: float

    def cost(self, usage: Mapping[str, Any]) -> float:
        """Cost of one response's `usage`. Tokens that only `total_tokens` includes count as output,
        because some endpoints leave reasoning out of `output_tokens`."""
        asked = usage.get("input_tokens") or 0
        given = max(usage.get("output_tokens") or 0, (usage.get("total_tokens") or 0) - asked)
        details = usage.get("input_tokens_details") or {}
        cached = min(details.get("cached_tokens") or 0, asked)
        written = min(details.get("cache_write_tokens") or 0, asked - cached)
        long = min(details.get("cache_write_1h_tokens") or 0, written)
        return (
            (asked - cached - written) * self.input
            + cached * self.cached_input
            + (written - long) * self.cache_write
            + long * self.cache_write_1h
            + given * self.output
        )

    def to_json(self) -> list[float]:
        """All numbers; the last one is left out if it is that of other writes."""
        numbers = list(astuple(self))
        return numbers[:-1] if self.cache_write_1h == self.cache_write else numbers

    @classmethod
    def from_json(cls, numbers: list[float]) -> "Rates":
        above, asked, cached, written, given, *long = numbers
        prices = map(float, (asked, cached, written, given, *(long or [written])))
        return cls(int(above), *prices)

    def times(self, factor: float) -> "Rates":
        above, *prices = astuple(self)
        return Rates(above, *(price * factor for price in prices))


@dataclass(frozen=True, slots=True)
class Tariff:
    """A model's rates by service tier. Of a tier, the last rates whose `above` is exceeded
    apply."""

    tiers: dict[str, list[Rates]]

    def cost(self, usage: Mapping[str, Any], tier: str | None = None, requests: int = 1) -> float:
        """US dollars. `usage` may be the sum over `requests`, which are assumed to be of equal
        length. An unknown tier has the standard price."""
        steps = self.tiers.get(tier or STANDARD) or self.tiers[STANDARD]
        rates = steps[0]
        if len(steps) > 1:
            length = (usage.get("input_tokens") or 0) / max(requests, 1)
            rates = next((each for each in reversed(steps) if length > each.above), rates)
        return rates.cost(usage)

    def standard_cost(self, usage: Mapping[str, Any]) -> float:
        """US dollars of one response at the standard price, if nothing of it were cached."""
        return self.cost({**usage, "input_tokens_details": None})

    def with_tier(self, tier: str, factor: float) -> "Tariff":
        """The same, with a factor on the standard prices for a tier that has no prices yet."""
        scaled = [each.times(factor) for each in self.tiers[STANDARD]]
        return Tariff({tier: scaled, **self.tiers})

    @property
    def is_free(self) -> bool:
        return all(not (each.input or each.output) for each in self.tiers[STANDARD])

    def words(self) -> str:
        """The standard prices of a short request, as text."""
        rates = self.tiers[STANDARD][0]
        others = {"cached": rates.cached_input, "written to a cache": rates.cache_write}
        differ = [
            f"{name} ${price * MILLION:.4g}"
            for name, price in others.items()
            if price != rates.input
        ]
        cached = f" ({', '.join(differ)})" if differ else ""
        given = f"${rates.output * MILLION:.4g} out"
        return f"${rates.input * MILLION:.4g} in{cached}, {given}, for a million tokens"

    def to_json(self) -> JsonObject:
        return {tier: [each.to_json() for each in steps] for tier, steps in self.tiers.items()}

    @classmethod
    def from_json(cls, value: Any) -> "Tariff | None":
        """The tariff in a server's description; None if it has no valid one."""
        try:
            tiers = {
                str(tier): [Rates.from_json(step) for step in steps]
                for tier, steps in value.items()
            }
        except (AttributeError, TypeError, ValueError):
            return None
        return cls(tiers) if tiers.get(STANDARD) else None


FREE = Tariff({STANDARD: [Rates(0, 0, 0, 0, 0, 0)]})
"""The tariff of a model on the user's own machines."""


def tariff_of(given: Prices | None, model: str, url: str) -> Tariff | None:
    """The tariff of `model` at the endpoint `url`; None if it is unknown."""
    given = given or Prices()
    if given.input is not None and given.output is not None:
        written = given.input if given.cache_write is None else given.cache_write
        long = written if given.cache_write_1h is None else given.cache_write_1h
        cached = given.input if given.cached_input is None else given.cached_input
        numbers = (given.input, cached, written, given.output, long)
        found: Tariff | None = Tariff({STANDARD: [Rates(0, *(each / MILLION for each in numbers))]})
    else:
        found = _in_table(given.model or model, url, given.provider)
    if found is None:
        return None
    standard = found.tiers[STANDARD]
    scaled = {tier: [each.times(by) for each in standard] for tier, by in given.factors.items()}
    return Tariff({**found.tiers, **scaled})


def _in_table(model: str, url: str, provider: str | None) -> Tariff | None:
    """Today's tariff in the price table, with the tiers whose prices differ from the standard."""
    if not provider and urlsplit(url).hostname in (None, "localhost", "127.0.0.1", "::1"):
        return None  # without a provider the table need not be imported
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(
            model, None, provider, None if provider else url
        )
    except LookupError:
        return None
    now = datetime.now(UTC)
    tiers = {tier: _steps(found.get_prices(now, when)) for tier, when in TIERS.items()}
    standard = tiers[STANDARD]
    if not standard:
        return None
    differ = {tier: steps for tier, steps in tiers.items() if steps != standard}
    return Tariff({STANDARD: standard, **differ})


def _steps(price: Any) -> list[Rates]:
    """Rates for each input length at which a price changes."""
    asked, given = price.input_mtok, price.output_mtok
    if asked is None and given is None:
        return []
    cached = asked if price.cache_read_mtok is None else price.cache_read_mtok
    written = asked if price.cache_write_mtok is None else price.cache_write_mtok
    long = getattr(price, "cache_write_1h_mtok", None)  # early releases of the table have none
    quoted = (asked, cached, written, given, written if long is None else long)
    starts = {tier.start for each in quoted for tier in getattr(each, "tiers", ())}
    return [
        Rates(start, *(_at(each, start) / MILLION for each in quoted))
        for start in sorted({0, *starts})
    ]


def _at(quoted: Any, start: int) -> float:
    """A quoted price for requests just longer than `start`."""
    steps = getattr(quoted, "tiers", None)
    if steps is None:
        return float(quoted or 0)
    return float(next((each.price for each in reversed(steps) if start >= each.start), quoted.base))


def read_cost(usage: Any) -> float | None:
    """The US dollars that the endpoint itself names, as OpenRouter does; None if it names none. A
    key of the user's own is billed by somebody else."""
    if not isinstance(usage, dict) or usage.get("is_byok"):
        return None
    cost = usage.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        return None
    return float(cost) if 0 <= cost < math.inf else None


@dataclass(slots=True)
class CostLimit:
    """Limits what the answers of a server cost, in US dollars. The cost of an answer is known once
    it is there, so each request in flight is expected to cost as much as the largest so far. The
    first one goes alone. Pure but for the wait."""

    most: float
    spent: float = 0.0
    _largest: float | None = None
    _in_flight: int = 0
    _is_unknown: bool = False
    _ended: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Spent]:
        """Context of one request, which adds its cost to what this yields. Waits for requests in
        flight whose cost decides; ModelError if the limit leaves no room."""
        async with self._ended:
            while self._has_to_wait():
                await self._ended.wait()
            self._in_flight += 1
        spent = Spent()
        try:
            yield spent
        finally:
            self._in_flight -= 1
            self.spent += spent.usd
            if spent.calls:
                self._largest = max(self._largest or 0.0, spent.usd)
                self._is_unknown |= bool(spent.unpriced)
            async with self._ended:
                self._ended.notify_all()

    def _has_to_wait(self) -> bool:
        if self._is_unknown:
            raise ModelError(
                "max_cost_usd: the price of this model is unknown: set its prices, or leave out"
                " max_cost_usd",
                retryable=False,
            )
        expected = self._largest or 0.0
        if self.spent >= self.most or self.spent + expected > self.most:
            raise ModelError(
                f"max_cost_usd={self.most:g} is reached: ${self.spent:.4f} were spent since this"
                " server was started",
                retryable=False,
            )
        if self._in_flight and self._largest is None:
            return True
        return self._in_flight > 0 and self.spent + expected * (self._in_flight + 1) > self.most
