"""ng_audit_verifier: test whether verdicts are reproducible, and measure their duration."""

import json
import sys
from pathlib import PurePath

from ..authoring.audit_report import format_audit
from ..authoring.audit_stage import audit
from ..collecting.data.benchmarks.prepared import prepare_rows
from ..config.benchmarks.harbor import find_own
from ..config.keys import AuditConfig
from ..reading import read_object
from ..serving.transport import loop
from ..store.files import check_replaceable, write_json
from . import entry


def add_config(words: list[str]) -> list[str]:
    """Add the entrypoint's own configuration if none is given."""
    given = dict(word.lstrip("+").split("=", 1) for word in words if "=" in word)
    folder = PurePath(given.get("entrypoint") or "")
    if not folder.name or "config_paths" in given:
        return words
    return [*words, f"+config_paths=[{folder / 'configs' / folder.name}.yaml]"]


def main(words: list[str]) -> int:
    config = entry.load(add_config(words), AuditConfig)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if (own := find_own(config.command)) is not None:
        prepare_rows(own, lambda text, **_: tell(text))
    path = config.command.output_fpath
    if path:
        check_replaceable(path, "earlier audit", lambda path: "flags" in read_object(path))
    found = loop.run(audit(config, tell))
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    if config.command.json_output:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print("\n".join([*format_audit(found), *([f"Details: {path}"] if path else [])]))
    return entry.FAILED if found["flags"] else 0
