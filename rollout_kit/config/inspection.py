"""Additional checks of `ng_validate`: whether each server could start and work on this machine.

Nothing is started. Other commands skip these checks, because some runs do not need them.
"""

import inspect
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from ..errors import how_to_install, suggest
from ..serving.resources_server import ResourcesServer
from ..serving.service import Service
from .fields import keys
from .instance_keys import CommonKeys, is_url
from .instances import Instance


def problems(instances: Iterable[Instance]) -> list[str]:
    """Errors that would occur as soon as a server is used."""
    return [line for one, server in _servers(instances) for line in _problems(one, server)]


def warnings(instances: Iterable[Instance]) -> list[str]:
    """Probable mistakes."""
    return [line for one, server in _servers(instances) for line in _unread_keys(one, server)]


def _servers(instances: Iterable[Instance]) -> Iterator[tuple[Instance, type[Service]]]:
    """The instances that run with this interpreter, with their classes."""
    for each in instances:
        if each.code is None and each.python is None and not is_url(each.placement or ""):
            yield each, each.load()


def _problems(instance: Instance, server: type[Service]) -> Iterator[str]:
    title = f"{instance.name} ({instance.implementation})"
    missing = [package for package in server.needs if find_spec(package) is None]
    if missing:
        install = how_to_install(*sorted({server.needs[package] for package in missing}))
        yield f"{title}: needs {', '.join(missing)}, not installed here: {install}"
    if issubclass(server, ResourcesServer) and (lack := server.find_lack()):
        yield f"{title}: {lack}: nothing is rewarded"


def _unread_keys(instance: Instance, server: type[Service]) -> Iterator[str]:
    """Keys that the code of a server never mentions, if the server accepts any key."""
    known = keys(server.Config)
    if given := [key for key in instance.settings if key not in known]:
        folder = Path(inspect.getfile(server)).parent
        code = "\n".join(each.read_text(errors="replace") for each in folder.rglob("*.py"))
        for key in given:
            if key not in code:
                hint = suggest(key, [*known, *CommonKeys.model_fields])
                yield (
                    f"{instance.name} ({instance.implementation}): no code in {folder} mentions the"
                    f" key '{key}'{hint}"
                )
