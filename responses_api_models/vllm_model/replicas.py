"""Make the engines of a block: command, environment and GPUs of each."""

import logging
import os
import shutil
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path

from rollout_kit.errors import ConfigError, suggest
from rollout_kit.launch.output import ALOUD, QUIET
from rollout_kit.serving.process_tree import MARK
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.types import JsonObject

from . import gpus, installed
from .config import VllmModelConfig
from .engine import Engine, environment, terms_of
from .options import OPTIONS, arguments, further

QUIET_LOG = "disable_uvicorn_access_log"
"""An option that older releases lack."""

FOR_RL = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""Lets vLLM change its weights. Its routes for that ask for no key: it listens on loopback only."""

NUM_ADAPTERS = 2
"""The one in use, and the one that requests in flight end with."""

log = logging.getLogger(__name__)


def replicas(config: VllmModelConfig, name: str, http: HttpClient) -> list[Engine]:
    """The engines of the instance `name`, not yet started; ConfigError if one cannot start."""
    executable = _executable(config.vllm_executable, name)
    options = _known_to(executable, _options(config), config.model_fields_set, name)
    listed = installed.known(executable) or OPTIONS
    words = [*arguments(options), *further(config.extra_args, listed)]
    key = {"VLLM_API_KEY": config.api_key} if config.api_key else {}
    own = environment({**key, **(FOR_RL if config.rl else {})})
    shares = gpus.shares(config.num_replicas, config.num_gpus, gpus.visible())
    several = config.num_replicas > 1
    return [
        Engine(
            f"vLLM {number}" if several else "vLLM",
            [executable, "serve", config.model, *words],
            {**own, **share},
            http,
            say=partial(_say, ALOUD, ""),
            note=partial(_say, QUIET, f"[{number}] " if several else ""),
            terms=terms_of(config.ready_timeout_s, config.max_restarts),
        )
        for number, share in enumerate(shares)
    ]


def _options(config: VllmModelConfig) -> JsonObject:
    """The given options, and those that follow from them unless given."""
    implied: JsonObject = {QUIET_LOG: True}
    if config.lora_modules:
        implied["enable_lora"] = True
    if config.weight_sync and config.weight_sync.mode == "lora_dir":
        implied |= {"enable_lora": True, "max_loras": NUM_ADAPTERS}
    if config.rl:
        implied["enable_sleep_mode"] = True  # or /sleep releases nothing
    if config.return_token_ids:  # log-probs after temperature, top-k and top-p
        implied["logprobs_mode"] = "processed_logprobs"
        implied["enable_scale_out"] = True  # later turns are sent as token ids
    return {**implied, **config.model_dump(exclude_unset=True)}


def _known_to(
    executable: str, options: JsonObject, given: Collection[str], name: str
) -> JsonObject:
    """The options that the installed vLLM has; ConfigError if it lacks one that was given."""
    if installed.known(executable) is None:
        _say(QUIET, "", f"asking {executable} which options it has, once")
    if (found := installed.options(executable)) is None:
        return {key: value for key, value in options.items() if key != QUIET_LOG or key in given}
    missing = [each for each in options if each in OPTIONS and each not in found]
    for each in missing:
        if each in given:
            raise ConfigError(
                f"{name}: the vLLM of {executable} has no option '{each}'{suggest(each, found)}"
            )
    return {key: value for key, value in options.items() if key not in missing}


def _executable(given: str, name: str) -> str:
    wanted = str(Path(given).expanduser())
    if found := shutil.which(wanted):
        return str(Path(found).absolute())
    raise ConfigError(
        f"{name}: there is no '{wanted}' to start vLLM with. vLLM may have an environment of its"
        " own:\n    python -m venv ~/vllm && ~/vllm/bin/pip install vllm\nand then"
        f" '+{name}.vllm_executable=~/vllm/bin/vllm'. Or name a vLLM that runs already:"
        f" '+{name}.base_url=http://localhost:8000/v1'"
    )


def _say(loudness: str, prefix: str, text: str) -> None:
    """Write lines to the output of this server process, for people or for the log alone."""
    if MARK not in os.environ:  # not in a server process
        log.log(logging.WARNING if loudness == ALOUD else logging.DEBUG, "%s%s", prefix, text)
        return
    sys.stdout.write("".join(f"{loudness}{prefix}{line}\n" for line in text.split("\n")))
    sys.stdout.flush()
