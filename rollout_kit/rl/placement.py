"""Generation and training in turns on the same GPUs: while the trainer works, the model server
sleeps and gives its memory away."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ModelError
from ..types import JsonObject

TIMEOUT_S = 1800
"""The server first ends the requests that it has."""


class Phases:
    """The phases of a trainer that shares the GPUs of a model server with `POST /sleep`.

    phases = Phases("http://127.0.0.1:8001")
    with phases.training():
        ...  # the memory of the GPUs is the trainer's
    """

    def __init__(self, url: str, level: int = 1) -> None:
        self._url, self._level = url.rstrip("/"), level

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context in which the server sleeps. It wakes up at the end, also after an error."""
        self._post("sleep", {"level": self._level})
        try:
            yield
        finally:
            self._post("wake_up", {})

    def _post(self, route: str, body: JsonObject) -> None:
        header = {"content-type": "application/json"}
        url = f"{self._url}/{route}"
        request = urllib.request.Request(url, json.dumps(body).encode(), header)
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise ModelError(f"{url}: {error.code}: {said:.300}") from None
