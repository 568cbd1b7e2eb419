"""Writes one HTML file with the rollouts of a filter: for a reader who has neither the files nor
this toolkit. It loads nothing, and runs only the script whose hash its policy names."""

import base64
import hashlib
import re
from html import escape
from pathlib import Path

import orjson

from ...config.keys import ViewConfig
from ...errors import ConfigError, number_of
from ...types import JsonObject
from ..pages.page_file import check_page, write_page
from ..pages.site import find_file
from ..withheld import WHY, is_withheld
from .app import PAGE, Viewer
from .dataset import Dataset
from .figures import histogram, plots
from .query import Query

MAX_ROLLOUTS = 2000

MAIN = "main.js"

PLAIN = ("uplot.js", "diff.js", "markdown.js", "katex.js", "highlight.js", "purify.js")
"""Libraries that are no modules."""

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([^"]+)";\n?', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const) (\w+))", re.MULTILINE)
VENDOR_EXPORT = re.compile(r"export\{([^}]*)\};?\s*$")


def write_report(command: ViewConfig) -> str:
    """Write the file and say so; ConfigError for a wrong filter, or if it chooses nothing."""
    assert command.static_fpath is not None
    path = command.static_fpath.expanduser()
    check_page(path)
    viewer = Viewer(Dataset(command.inputs), " ".join(command.inputs))
    viewer.reader.is_for_others = True
    viewer.update()
    viewer.dataset.check_readable()
    report, num_chosen = build_report(viewer, command)
    write_page(path, build_html(report))
    size = path.stat().st_size / 1e6
    held = len(report["rows"])
    some = "" if held == num_chosen else f" of {num_chosen:,}, the first ones"
    written = f"{path}: {number_of(held, 'rollout')}{some}, {size:.1f} MB"
    hidden = sum(is_withheld(each["line"]) for each in report["rollouts"].values())
    note = [f"Without the rows of {number_of(hidden, 'rollout')}: {WHY}"] if hidden else []
    return "\n".join([written, *note, *viewer.dataset.say_left_out()])


def build_report(viewer: Viewer, command: ViewConfig) -> tuple[JsonObject, int]:
    """Everything that the page asks for, and how many rows the filter chooses."""
    dataset = viewer.dataset
    query = Query(command.where, command.search, command.sort)
    result = viewer.queries.wait(query)
    if result.error:
        raise ConfigError(result.error)
    ids = result.ids[:MAX_ROLLOUTS]
    if not ids:
        raise ConfigError("no rollout matches: nothing was written")
    rows = [viewer.row(row_id) for row_id in ids]
    groups = {}
    for row in rows:
        name = f"{row['file']}\n{row['task_id']}"
        if name not in groups:
            groups[name] = viewer.reader.group(row["id"])
    state = viewer.state()
    countable = ["status", *(column["name"] for column in state["columns"])]
    chosen = " and ".join(f"({each})" for each in (query.where, query.search) if each)
    report = {
        "about": f"{', '.join(command.inputs)}{': ' if chosen else ''}{chosen}",
        "state": {**state, "rows": len(ids), "version": 0},
        "rows": rows,
        "rollouts": {row_id: viewer.reader.rollout(row_id, is_whole=True) for row_id in ids},
        "groups": groups,
        "plots": plots(dataset, ids),
        "histograms": {name: histogram(dataset, ids, name) for name in countable},
    }
    return report, len(result.ids)


def build_html(report: JsonObject) -> str:
    """The file: data, styles and script inline. Data is escaped so that it cannot end its tag."""
    raw = orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS).decode()
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        raw = raw.replace(sign, code)
    style = "\n".join(_read(name) for name in ("vendor/uplot.css", "style.css"))
    script = build_script()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(report['about'])}</title>\n<style>{style}</style></head>\n"
        '<body><div id="page"><p class="note">Loading…</p></div>\n'
        f'<script type="application/json" id="report">{raw}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def build_script() -> str:
    """All modules of the page as one script, each a function that returns its exports."""
    plain = [_read(f"vendor/{name}") for name in PLAIN]
    read = 'globalThis.ROLLOUT_REPORT = JSON.parse(document.getElementById("report").textContent);'
    modules: dict[str, str] = {}
    _bundle(MAIN, modules)
    parts = [f"const {name} = (() => {{\n{body}\n}})();" for name, body in modules.items()]
    script = "\n".join([*plain, read, "(() => {", *parts, "})();"])
    return script.replace("</script", "<\\/script")


def _bundle(name: str, modules: dict[str, str]) -> None:
    """Add a module after those that it imports."""
    body = _read(name)
    for _, other in IMPORT.findall(body):
        if _variable(other) not in modules:
            _bundle(other, modules)

    def read(found: re.Match[str]) -> str:
        names = re.sub(r"(\w+) as (\w+)", r"\1: \2", found[1])
        return f"const {{{names}}} = {_variable(found[2])};\n"

    exports = EXPORT.findall(body)
    body = EXPORT.sub("", IMPORT.sub(read, body))
    if found := VENDOR_EXPORT.search(body):
        pairs = re.sub(r"([\w$]+) as (\w+)", r"\2: \1", found[1])
        body = f"{body[: found.start()]}\nreturn {{{pairs}}};"
    else:
        body += f"\nreturn {{{', '.join(exports)}}};"
    modules[_variable(name)] = body


def _read(name: str) -> str:
    path = find_file(PAGE, name)
    assert path is not None, name
    return path.read_text()


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", Path(name).stem)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
