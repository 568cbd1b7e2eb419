"""The environment of a process that must hold no key: an allow-list, and the only one.

It has what an interpreter and its libraries need to start, to find files and to speak a language.
A variable that is not in it may hold a key, whatever its name.
"""

import os
import re
from collections.abc import Mapping

SYSTEM = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "NO_COLOR", "TMPDIR", "TEMP", "TMP"),
    *("LANG", "LANGUAGE", r"LC_[A-Z]+", "TZ", "TZDIR", r"XDG_[A-Z]+_(HOME|DIRS?)"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Programs, folders, language and libraries."""

PYTHON = (r"PYTHON[A-Z]*", "VIRTUAL_ENV", "CONDA_PREFIX", "COVERAGE_PROCESS_START")

COMPUTATION = (
    *(r"[A-Z]+_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "MALLOC_ARENA_MAX"),
    *("NLTK_DATA", "MPLCONFIGDIR", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
)
"""Threads, devices, and the folders of data."""

ENGINES = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF"),
    *("CONTAINERS_STORAGE_CONF", "DBUS_SESSION_BUS_ADDRESS"),
)
"""Where a container engine listens, for servers that run code in containers."""

OURS = ("ROLLOUT_KIT_PROCESS", "ROLLOUT_KIT_WATCH")
"""The mark by which descendants are found, and what an audit watches."""

ALLOWED = re.compile("|".join((*SYSTEM, *PYTHON, *COMPUTATION, *ENGINES, *OURS)))


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `environment` that hold no key."""
    return {name: value for name, value in environment.items() if ALLOWED.fullmatch(name)}
