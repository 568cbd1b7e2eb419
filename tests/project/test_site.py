"""The site is built strictly, is small, and asks no other host for anything."""

import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from workplace import ROOT

LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"?(https?://[^\"\s>]+)")
"""What a browser loads by itself from another host."""

MAX_BYTES = 15 << 20

SITE = ROOT / ".site/html"

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

SEEN = (
    "",
    "CHANGELOG/",
    "docs/",
    *(f"docs/{name}/" for name in ("arms", "exporting", "failures", "files", "rl")),
    "docs/reference/commands/",
    "responses_api_models/vllm_model/",
)
"""Pages that are looked at in a browser."""


@pytest.fixture(scope="module")
def built() -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "docs/build.py"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.documents
def test_the_site_is_built_strictly_is_small_and_loads_nothing_from_elsewhere(built: None) -> None:
    assert sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file()) <= MAX_BYTES
    pages = list(SITE.rglob("*.html"))
    assert {"index.html", "404.html"} <= {path.name for path in pages} and len(pages) > 60
    for page in pages:
        text = page.read_text()
        assert not LOADED.findall(text), page
        assert not re.search(r"```\w", text), f"{page}: a block of code is not one"
    home = (SITE / "index.html").read_text()
    assert '<span class="filename">exact.yaml</span>' in home and 'id="your-own-verifier"' in home
    assert (SITE / "search/search_index.json").stat().st_size > 10_000
    for name in ("num_repeats", "max_tries", "finish_reason", "SessionLost", "collect_sync"):
        assert name in (SITE / "search/search_index.json").read_text(), name


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.documents
def test_its_pages_can_be_read_by_everyone_on_a_desktop_and_a_phone(built: None) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser or not (ROOT / ".browser/node_modules").exists() or not shutil.which("node"):
        pytest.skip("no Chromium or no playwright-core: make test-view installs them")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        words = ["node", "tests/browser/site.mjs", ".browser", browser, url, *SEEN]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
        server.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
