"""ng_audit_verifier: whether a verifier's verdicts can be trusted, and how long they take."""

import sys
from pathlib import PurePath

from . import entry

NAME = "ng_audit_verifier"


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run(NAME, with_config(argv), _audit))


def with_config(argv: list[str]) -> list[str]:
    """An entrypoint's own configuration, where none is named."""
    given = dict(word.lstrip("+").split("=", 1) for word in argv if "=" in word)
    folder = PurePath(given.get("entrypoint") or "")
    if not folder.name or "config_paths" in given:
        return argv
    return [*argv, f"+config_paths=[{folder / 'configs' / folder.name}.yaml]"]


def _audit(config) -> int:
    import json

    from ..authoring.audit_report import lines
    from ..authoring.audit_stage import audit
    from ..launch import loop  # no server is needed to print the help
    from ..store.files import write_json

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    found = loop.run(audit(config, tell))
    if path := config.command.output_fpath:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    if config.command.json_output:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print("\n".join([*lines(found), *([f"All of it: {path}"] if path else [])]))
    return entry.FAILED if found["flags"] else 0
