"""Which models of a configuration gather requests into batches, and where they keep these."""

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError, validation_summary
from .instances import MODELS, Block, Instance, config_of

BATCH, BATCH_DIR = "batch", "batch_dir"
"""The setting of models that gather requests into batches, also the command's key that sets it for
all; and where batches are kept."""


def with_batches(given: dict[str, Instance], cwd: Path) -> dict[str, Instance]:
    """The instances, with `batch` set for the models that can gather requests and do not say
    whether they do."""
    found = dict(given)
    for name, one in given.items():
        block = Block(name, one.type, one.implementation, one.settings, (name,), made=one.made)
        config = config_of(block, cwd) if one.type == MODELS else None
        if config is not None and BATCH in config.model_fields and BATCH not in one.settings:
            settings = {**one.settings, BATCH: True}
            try:
                config.model_validate(settings)
            except ValidationError as error:
                raise ConfigError(f"{name}: +batch=true: {validation_summary(error)}") from None
            found[name] = replace(one, settings=settings)
    return found


NONE_GATHERS = (
    "batch: no model server here can gather requests into batches: leave it out, or use a server of"
    " a provider that has batches, such as openai_model"
)


def explain_none(given: dict[str, Instance], *, is_error: bool) -> list[str]:
    """That no model gathers requests into batches, if none does; ConfigError if that `is_error`."""
    if not given or any(one.settings.get(BATCH) is True for one in given.values()):
        return []
    if is_error:
        raise ConfigError(NONE_GATHERS)
    return [NONE_GATHERS]


def check_batches(given: dict[str, Instance]) -> None:
    """ConfigError if a model that gathers requests into batches has several processes."""
    for name, one in given.items():
        if one.settings.get(BATCH) is True and one.num_workers > 1:
            raise ConfigError(
                f"{name}: num_workers: one process gathers the requests of a batch: leave it out"
            )


def place_batches(given: dict[str, Instance], folder: Path) -> dict[str, Instance]:
    """The instances; those that gather requests into batches keep these in a folder of this one."""
    return {
        name: replace(one, settings={**one.settings, BATCH_DIR: str(folder.absolute() / name)})
        if one.settings.get(BATCH) is True and not one.settings.get(BATCH_DIR)
        else one
        for name, one in given.items()
    }
