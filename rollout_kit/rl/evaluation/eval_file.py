"""The file of an evaluation: sets of held-out tasks, and how often each task is answered."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...config.fields import problems
from ...errors import ConfigError
from ...store.arms.template import read_yaml
from ...types import JsonObject

GREEDY = "_greedy"
"""End of the name of a set whose answers are greedy."""


class EvaluationSet(BaseModel):
    """Held-out tasks of one environment."""

    model_config = ConfigDict(extra="forbid")

    input_jsonl_fpath: str
    agent_name: str
    limit: int | None = Field(None, ge=1)
    num_repeats: int = Field(4, ge=1)
    responses_create_params: JsonObject = Field(default_factory=dict)
    num_samples_in_parallel: int = Field(16, ge=1)
    model_priority: int = 0
    model_share: float = Field(1.0, gt=0)

    def make_greedy(self) -> "EvaluationSet":
        """The same tasks, each answered once with the likeliest tokens."""
        params = {**self.responses_create_params, "temperature": 0}
        return self.model_copy(update={"num_repeats": 1, "responses_create_params": params})


class EvaluationFile(BaseModel):
    """All sets by name. With `greedy`, each is answered greedily too."""

    model_config = ConfigDict(extra="forbid")

    sets: dict[str, EvaluationSet] = Field(min_length=1)
    greedy: bool = True

    def list_sets(self) -> dict[str, EvaluationSet]:
        """What is evaluated, by the names of the figures."""
        found = dict(self.sets)
        if self.greedy:
            found |= {f"{name}{GREEDY}": each.make_greedy() for name, each in self.sets.items()}
        return found


def read_evaluation(path: Path) -> EvaluationFile:
    """The sets of a YAML file; ConfigError for one that cannot be used."""
    try:
        found = EvaluationFile.model_validate(read_yaml(path, "eval"))
    except ValidationError as error:
        said = "; ".join(map(str, problems(error, EvaluationFile)))
        raise ConfigError(f"eval {path}: {said}") from None
    for name, each in found.sets.items():
        if not Path(each.input_jsonl_fpath).expanduser().is_file():
            raise ConfigError(f"eval {path}: {name}: no file {each.input_jsonl_fpath}")
    return found
