"""A stand-in of the Hugging Face hub: datasets as files at one commit, over real HTTP."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import orjson
import pytest

COMMIT = "c" * 40


@dataclass
class Hub:
    """`files`: repository → path → content. `gated`: repositories that want a token."""

    url: str
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    revisions: set[str] = field(default_factory=set)
    """Known commits besides the newest one; all, if empty."""
    asked: list[str] = field(default_factory=list)


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """The hub while the context lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(self.path.partition("?")[0])
        hub.asked.append(path)
        status, body, headers = _find(hub, path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _find(hub: Hub, path: str) -> tuple[int, bytes, dict[str, str]]:
    repo = next((name for name in hub.files if name in path), "")
    if repo in hub.gated:
        return 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
    if path.startswith(f"/api/datasets/{repo}") and repo:
        revision = path.partition("/revision/")[2]
        if revision and hub.revisions and revision not in hub.revisions:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        about = {
            "id": repo,
            "sha": revision or COMMIT,
            "siblings": [{"rfilename": name} for name in hub.files[repo]],
        }
        return 200, orjson.dumps(about), {"Content-Type": "application/json"}
    if repo and path.startswith(f"/datasets/{repo}/resolve/"):
        commit, _, name = path.removeprefix(f"/datasets/{repo}/resolve/").partition("/")
        content = hub.files[repo].get(name)
        if content is not None:
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            return 200, content, {"ETag": etag, "X-Repo-Commit": commit}
    return 404, b"{}", {"X-Error-Code": "RepoNotFound"}


@contextmanager
def standing_in(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """The hub for all that asks Hugging Face in this process, with empty caches."""
    from huggingface_hub import constants

    with serve_hub() as found:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setenv("HF_ENDPOINT", found.url)
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
        yield found
