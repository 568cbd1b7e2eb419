"""Which models of a configuration gather requests into batches, and where they keep these."""

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError, validation_summary
from .instances import MODELS, Block, Instance, config_of

BATCH, CHEAPEST, BATCH_DIR = "batch", "cheapest", "batch_dir"

FOR_ALL = (BATCH, CHEAPEST)
"""Settings of models that may gather requests into batches, which are also keys of commands that
set them for all."""


def set_for_all(key: str, given: dict[str, Instance], cwd: Path) -> dict[str, Instance]:
    """The instances, with one of FOR_ALL set for the models that have it and do not say it."""
    found = dict(given)
    for name, one in given.items():
        block = Block(name, one.type, one.implementation, one.settings, (name,), made=one.made)
        config = config_of(block, cwd) if one.type == MODELS else None
        if config is not None and key in config.model_fields and key not in one.settings:
            settings = {**one.settings, key: True}
            try:
                config.model_validate(settings)
            except ValidationError as error:
                raise ConfigError(f"{name}: +{key}=true: {validation_summary(error)}") from None
            found[name] = replace(one, settings=settings)
    return found


NONE_GATHERS = (
    "{}: no model server here can gather requests into batches: leave it out, or use a server of"
    " a provider that has batches, such as openai_model"
)


def explain_none(key: str, given: dict[str, Instance], *, is_error: bool) -> list[str]:
    """That no model has one of FOR_ALL set, if none has; ConfigError if that `is_error`."""
    if not given or any(one.settings.get(key) is True for one in given.values()):
        return []
    if is_error:
        raise ConfigError(NONE_GATHERS.format(key))
    return [NONE_GATHERS.format(key)]


def may_gather(one: Instance) -> bool:
    """Whether a model may gather requests into batches."""
    return any(one.settings.get(key) is True for key in FOR_ALL)


def check_batches(given: dict[str, Instance]) -> None:
    """ConfigError if a model that gathers requests into batches has several processes."""
    for name, one in given.items():
        if may_gather(one) and one.num_workers > 1:
            raise ConfigError(
                f"{name}: num_workers: one process gathers the requests of a batch: leave it out"
            )


def place_batches(given: dict[str, Instance], folder: Path) -> dict[str, Instance]:
    """The instances; those that gather requests into batches keep these in a folder of this one."""
    return {
        name: replace(one, settings={**one.settings, BATCH_DIR: str(folder.absolute() / name)})
        if may_gather(one) and not one.settings.get(BATCH_DIR)
        else one
        for name, one in given.items()
    }
