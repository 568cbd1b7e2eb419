"""ng_test: check the folder of a server."""

from pathlib import Path

from ..authoring.examination import examine
from ..config.keys import EntrypointConfig
from ..errors import ConfigError, number_of, suggest
from ..serving import registry
from . import entry


def main(words: list[str]) -> int:

    entrypoint = entry.parse_keys(words, EntrypointConfig).entrypoint
    kind, name = Path(entrypoint).parent.name, Path(entrypoint).name
    folder = registry.find(kind, name)
    if kind not in registry.TYPES or folder is None or Path(entrypoint) != Path(kind, name):
        known = [
            f"{each}/{one}" for each in registry.TYPES for one in registry.implementations(each)
        ]
        raise ConfigError(
            f"entrypoint={entrypoint}: no such server{suggest(entrypoint, known)};"
            " ng_init_resources_server creates one"
        )
    failed = warned = 0
    for finding in examine(folder):
        outcome = "FAILED" if finding.problem else "warning" if finding.warning else "ok"
        print(f"{outcome:<8}{finding.what}", flush=True)
        for line in (finding.problem or finding.warning).splitlines():
            print(f"          {line}")
        failed += bool(finding.problem)
        warned += bool(finding.warning)
    outcome = f"{number_of(failed, 'check')} failed" if failed else "all checks passed"
    warnings = f", {number_of(warned, 'warning')}" if warned else ""
    print(f"{entrypoint}: {outcome}{warnings}")
    return entry.FAILED if failed else 0
