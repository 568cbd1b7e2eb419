"""Two tools in sequence: look up a value for each synonym, then submit all values in order."""

from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    function_calls,
    output_items,
    tool,
)


class ExampleMultiStepConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")


class SynonymsRequest(VerifyRequest):
    id: int
    expected_synonyms: list[str]
    expected_synonym_values: Annotated[list[int], Field(min_length=1)]
    minefield_label: str
    minefield_label_value: int


class Synonym(BaseModel):
    synonym: str


class SynonymValue(BaseModel):
    synonym_value: int


class SynonymValues(BaseModel):
    synonym_values: list[int]


class Extracted(BaseModel):
    success: bool


class ExampleMultiStep(ResourcesServer):
    """Reward 1.0 if the last `extract_synonym_values` call has exactly the expected values."""

    Config = ExampleMultiStepConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    @tool
    async def get_synonym_value(self, body: Synonym) -> SynonymValue:
        """The value of one synonym."""
        return SynonymValue(synonym_value=sum(map(ord, body.synonym)))

    @tool
    async def extract_synonym_values(self, body: SynonymValues) -> Extracted:
        """Hand in the values of all synonyms of the term, in the order of the list."""
        return Extracted(success=True)

    async def verify(self, body: SynonymsRequest) -> VerifyResponse:
        values = _read_submission(body.response)
        expected = body.expected_synonym_values
        is_exact = values == expected
        set_overlap = len(set(values) & set(expected)) / len(expected)
        return body.scored(
            reward=float(is_exact),
            parsed_synonym_values=values,
            accuracy=is_exact,
            set_overlap=set_overlap,
            original_term_minefield_hit=body.minefield_label_value in values,
            order_instruction_following_failure=not is_exact and set_overlap == 1.0,
        )


def _read_submission(response: JsonObject) -> list[int]:
    """Return the integers of the last `extract_synonym_values` call; none for other values."""
    calls = function_calls(output_items(response))
    given = [call for call in calls if call.get("name") == "extract_synonym_values"]
    try:
        values = orjson.loads(given[-1]["arguments"])["synonym_values"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return []
    if not isinstance(values, list) or not all(map(_is_whole, values)):
        return []
    return [int(value) for value in values]


def _is_whole(value: Any) -> bool:
    """Whether it is an integer in JSON: `384.0` is, `"384"` is not."""
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
