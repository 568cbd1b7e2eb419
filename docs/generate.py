"""Writes the reference pages in `docs/reference/` from the code.

python docs/generate.py           # write them
python docs/generate.py --check   # exit 1 if one is not what the code says
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import BaseModel

import rollout_kit
from rollout_kit import errors
from rollout_kit.collecting import results
from rollout_kit.collecting.live.snapshot import describe
from rollout_kit.config.benchmarks.definition import (
    TRAINING,
    Definition,
    list_definitions,
    read_definition,
)
from rollout_kit.config.commands import COMMANDS
from rollout_kit.config.instance_keys import CommonKeys
from rollout_kit.config.reference import KeyGroup, KeyRow, list_groups
from rollout_kit.serving.registry import TYPES, load

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/reference"

NOTE = "<!-- Written by docs/generate.py from the code. Change the texts there. -->"

KINDS = {
    "responses_api_models": "Model servers",
    "resources_servers": "Resources servers",
    "responses_api_agents": "Agents",
}

MANY = 100
"""Rows of a table that a reader opens only to look something up."""


class KeyTables:
    """Tables of keys. Keys that several commands or servers share have one table, at the first."""

    def __init__(self) -> None:
        self._shared: dict[str, list[KeyRow]] = {}

    def write(self, model: type[BaseModel], name: str, level: str) -> Iterator[str]:
        """The tables of a command or a server, under headings of this level."""
        for title, rows in list_groups(model):
            if not title or title == "Keys of this command":
                yield f"{level} Keys of {name} alone"
                yield from table(KeyGroup(title, rows))
            elif self._shared.get(title) == rows:
                yield f"Also: [{title}](#{anchor(title)})."
            else:
                yield f"{level} {title if title not in self._shared else f'{title} ({name})'}"
                self._shared.setdefault(title, rows)
                yield from table(KeyGroup(title, rows))


def table(group: KeyGroup) -> Iterator[str]:
    """A table of keys; one of very many rows is closed at first."""
    rows = ["| key | type | default | unit | meaning | since |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{row.name}` | {row.type_name} | {_default(row)} | {row.unit} | {_cell(row.about)}"
        f" | {row.since} |"
        for row in group.rows
    ]
    if len(group.rows) < MANY:
        yield "\n".join(rows)
        return
    yield f'<details markdown="1"><summary>{len(group.rows)} keys</summary>'
    yield "\n".join(rows)
    yield "</details>"


def _default(row: KeyRow) -> str:
    return "**required**" if row.default is None else f"`{row.default}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def anchor(title: str) -> str:
    """The anchor that Markdown makes of a heading."""
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " -_")
    return kept.replace(" ", "-")


def commands() -> Iterator[str]:
    """Every command with all of its keys."""
    yield "# Commands"
    yield (
        "You give a key as `+key=value`. `--help` shows you the keys that you need most, and"
        " `--help=all` shows all of them. The [glossary](../glossary.md) explains the terms."
    )
    tables = KeyTables()
    for name, info in COMMANDS.items():
        yield f"## {name}"
        yield f"{info.summary[:1].upper()}{info.summary[1:]}."
        if info.examples:
            yield "\n".join(["For example:", "", "```bash", *info.examples, "```"])
        yield from tables.write(info.keys, name, "###")


def configuration() -> Iterator[str]:
    """Every key of every server."""
    yield "# Configuration of servers"
    yield (
        "In a YAML file, a server is `<instance>: {<type>: {<implementation>: {<key>: …}}}`. You"
        " choose the name of the instance. On the command line you write"
        " `++<instance>.<type>.<implementation>.<key>=value`, for example"
        " `++policy_model.responses_api_models.openai_model.max_tries=5`. The"
        " [glossary](../glossary.md) explains the terms."
    )
    tables = KeyTables()
    yield "## Keys of every server"
    yield from tables.write(CommonKeys, "every server", "###")
    for type_, folders in groupby(servers(), key=itemgetter(0)):
        yield f"## {KINDS[type_]}"
        for _, folder in folders:
            yield f"### {folder.name}"
            yield f"[README](../../{type_}/{folder.name}/README.md)"
            yield from tables.write(load(type_, folder.name).Config, folder.name, "####")


def servers() -> Iterator[tuple[str, Path]]:
    """(type, folder) of every server that is shipped."""
    for type_ in TYPES:
        for folder in sorted((ROOT / type_).iterdir()):
            if (folder / "app.py").is_file():
                yield type_, folder


def failures() -> Iterator[str]:
    """The exit statuses of the commands, and the errors."""
    yield "# Errors and exit statuses"
    yield "## Exit statuses"
    yield "A command ends with one of these statuses. A run writes its status into `run.json` too."
    texts = attribute_texts(results, "Status")
    known = {1: "The command could not run. A line that begins with `error:` says why."}
    known |= {each.value: texts[each.name] for each in results.Status}
    rows = [f"| {status} | {known[status]} |" for status in sorted(known)]
    yield "\n".join(["| status | meaning |", "|---|---|", *rows])
    yield "## Errors"
    yield (
        "In Python you catch these classes, for example `except rk.ConfigError`. A failure in the"
        " failures file has the name of its class in `failure.class`. The column *status* has the"
        " status of the HTTP reply with which a server reports the error."
    )
    rows = ["| error | status | meaning |", "|---|---|---|"]
    for each in vars(errors).values():
        if inspect.isclass(each) and issubclass(each, errors.RolloutKitError):
            status = getattr(each, "default_status", "")
            rows.append(f"| `{each.__name__}` | {status} | {_cell(summary_of(each))} |")
    yield "\n".join(rows)


def names() -> Iterator[str]:
    """Every public name of the package."""
    yield "# Python API"
    yield (
        "These names are public. You import the first ones from `rollout_kit`, usually as"
        " `import rollout_kit as rk`. A name is described where you read `help(rk.collect)`, with"
        " types, units, errors and an example."
    )
    for package in ("rollout_kit", "rollout_kit.rl"):
        module = import_module(package)
        rows = ["| name | what it is |", "|---|---|"]
        for name, home in sorted(vars(module)["_MODULES"].items()):
            text = text_below(import_module(f"{package}.{home}"), name)
            rows.append(f"| `{name}` | {_cell(text or summary_of(getattr(module, name)))} |")
        yield f"## {package}"
        yield "\n".join(rows)


def summary_of(thing: object) -> str:
    """The first paragraph of an object's documentation."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


def attribute_texts(module: ModuleType, name: str) -> dict[str, str]:
    """The texts below the attributes of a class."""
    tree = ast.parse(inspect.getsource(module))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return _texts_in(found.body)


def text_below(module: ModuleType, name: str) -> str:
    """The text below a constant of a module; empty if it is none, or has none."""
    return _texts_in(ast.parse(inspect.getsource(module)).body).get(name, "")


def _texts_in(body: Sequence[ast.stmt]) -> dict[str, str]:
    texts = {}
    for one, other in pairwise(body):
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        text = other.value if isinstance(other, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
            texts[target.id] = " ".join(str(text.value).split())
    return texts


def figures() -> Iterator[str]:
    """Every figure of a snapshot."""
    yield "# Figures of a running collection"
    yield (
        "A collection takes a snapshot of these figures at most once a second. You get it from"
        " `ng_ctl +json=true`, for example, or from the routes in [Monitor and control"
        " runs](../live.md#from-another-machine). `null` means that a value is not known, or"
        " that there is none."
    )
    rows = (f"| `{name}` | {kind} | {_cell(about)} |" for name, kind, about in describe())
    yield "\n".join(["| figure | type | meaning |", "|---|---|---|", *rows])


BASES = {
    "Model server": rollout_kit.Model,
    "Resources server": rollout_kit.ResourcesServer,
    "Game": rollout_kit.GymnasiumServer,
    "Agent": rollout_kit.Agent,
}
"""Kinds of servers → the class whose routes they have."""


def routes() -> Iterator[str]:
    """The HTTP routes of the servers."""
    yield "# HTTP routes"
    yield (
        "Every server answers these routes with JSON. [Protocol](../protocol.md) shows how a"
        " rollout uses them, for example with a session. [openapi.json](openapi.json) has them as"
        " an OpenAPI document, with the fields of requests and replies."
    )
    for kind, base in BASES.items():
        rows = ["| route | request | reply | what it does |", "|---|---|---|---|"]
        for route in sorted(base.routes.values(), key=attrgetter("path")):
            handler = getattr(base, route.handler)
            request, reply = (_type_name(each) for each in bodies_of(handler))
            request = request if route.takes_body else ""
            text = _cell(summary_of(handler))
            rows.append(f"| `{route.method} {route.path}` | {request} | {reply} | {text} |")
        yield f"## {kind}"
        yield "\n".join(rows)


def bodies_of(handler: Callable[..., Any]) -> tuple[Any, Any]:
    """The types of the request's and of the reply's body of a route."""
    hints = get_type_hints(handler)
    reply = hints.pop("return", dict)
    return next(iter(hints.values()), dict), reply


def _type_name(kind: Any) -> str:
    return f"`{kind.__name__}`" if inspect.isclass(kind) and kind not in (dict, list) else "object"


def openapi() -> str:
    """The routes as an OpenAPI document."""
    schemas: dict[str, Any] = {}

    def schema_of(kind: Any) -> dict[str, Any]:
        if not (inspect.isclass(kind) and issubclass(kind, BaseModel)):
            return {"type": "object"}
        found = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(found.pop("$defs", {}))
        schemas[kind.__name__] = found
        return {"$ref": f"#/components/schemas/{kind.__name__}"}

    def content(kind: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema_of(kind)}}}

    paths: dict[str, dict[str, Any]] = {}
    for kind, base in BASES.items():
        for route in sorted(base.routes.values(), key=attrgetter("path")):
            handler = getattr(base, route.handler)
            request, reply = bodies_of(handler)
            known = paths.setdefault(route.path, {}).setdefault(route.method.lower(), {"tags": []})
            known["tags"].append(kind)
            if len(known["tags"]) == 1:
                known["summary"] = " ".join(summary_of(handler).split())
                known["responses"] = {"200": {"description": "The reply.", **content(reply)}}
                if route.takes_body:
                    known["requestBody"] = content(request)
    info = {"title": "rollout_kit servers", "version": rollout_kit.__version__}
    document = {"openapi": "3.1.0", "info": info, "paths": paths}
    return json.dumps({**document, "components": {"schemas": schemas}}, indent=1) + "\n"


def benchmarks() -> Iterator[str]:
    """Every benchmark, and every dataset to train on, that has a name."""
    yield "# Benchmarks"
    yield "[Benchmarks by name](../benchmarks.md) says how you run one, and how you add your own."
    for name in list_definitions():
        yield from _define(name, read_definition(name), "##")
    yield "## Datasets to train on"
    yield "[Train on a dataset](../benchmarks.md#train-on-a-dataset) says how you collect on one."
    for name in list_definitions(kind="dataset"):
        yield from _define(name, read_definition(TRAINING + name), "###")


def _define(name: str, one: Definition, mark: str) -> Iterator[str]:
    yield f"{mark} `{name}`"
    asks = f"`+{one.kind}={name}` asks your model {one.rows:,} rows"
    facts = [f"{asks}: {one.about}.", f"Verifier: `{one.server}`."]
    facts += [f"Metric: {one.metric}."] if one.metric else []
    facts += [f"License: {one.license}. {one.citation}."]
    yield " ".join(facts)
    if one.where:
        columns = ", ".join(f"`{column}`" for column in one.where)
        yield f"You get the rows that its definition takes by {columns}."
    yield f"You run it with `+{one.kind}={name}`."
    lines = [f"Follows: {one.follows}.", *(f"Differs: {each}" for each in one.differs)]
    lines += [f"You accept its terms first: {one.gated}"] if one.gated else []
    lines += [] if one.publish else ["Reports and exports leave out its rows."]
    lines += [f"You need: {', '.join(one.needs)}."] if one.needs else []
    yield "\n".join(f"- {line}" for line in lines)


PAGES = {
    "commands.md": commands,
    "configuration.md": configuration,
    "errors.md": failures,
    "python-names.md": names,
    "routes.md": routes,
    "snapshot.md": figures,
    "benchmarks.md": benchmarks,
}


def written() -> Iterator[tuple[Path, str]]:
    """(path, text) of each page."""
    for name, write in PAGES.items():
        yield FOLDER / name, "\n\n".join([NOTE, *write()]) + "\n"
    yield FOLDER / "openapi.json", openapi()


def main(words: Sequence[str]) -> int:
    """Write the pages, or check them; returns the exit status."""
    stale = [
        (path, text) for path, text in written() if not path.exists() or path.read_text() != text
    ]
    for path, text in stale:
        if "--check" in words:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} is not what the code says: make references\n"
            )
        else:
            path.write_text(text)
    return int("--check" in words and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
