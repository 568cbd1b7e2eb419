"""The site is built strictly, is small, and asks no other host for anything."""

import re
import subprocess
import sys

import pytest
from workplace import ROOT

LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"?(https?://[^\"\s>]+)")
"""What a browser loads by itself from another host."""

MAX_BYTES = 15 << 20


@pytest.mark.documents
def test_the_site_is_built_strictly_is_small_and_loads_nothing_from_elsewhere() -> None:
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "docs/build.py"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / ".site/html"
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) <= MAX_BYTES
    pages = list(site.rglob("*.html"))
    assert {"index.html", "404.html"} <= {path.name for path in pages} and len(pages) > 60
    for page in pages:
        text = page.read_text()
        assert not LOADED.findall(text), page
        assert not re.search(r"```\w", text), f"{page}: a block of code is not one"
    home = (site / "index.html").read_text()
    assert '<span class="filename">exact.yaml</span>' in home and 'id="your-own-verifier"' in home
    assert (site / "search/search_index.json").stat().st_size > 10_000
    for name in ("num_repeats", "max_tries", "finish_reason", "SessionLost", "collect_sync"):
        assert name in (site / "search/search_index.json").read_text(), name
