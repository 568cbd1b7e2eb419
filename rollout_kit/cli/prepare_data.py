"""ng_prepare_data: turn the datasets that agents list into checked task files."""

import sys

from . import entry

ROWS_LEFT_OUT = 2


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    from ..config.overrides import text_of
    from ..nemo_gym.benchmarks import config_of

    named = text_of(argv, "benchmark")
    argv = [*argv, f"+config_paths=[{config_of(named)}]"] if named else argv
    sys.exit(entry.run("ng_prepare_data", argv, _prepare))


def _prepare(config) -> int:
    import json

    from ..data.prepare import prepare, prepare_benchmark  # not needed for --help
    from ..data.summary import format_summaries
    from ..errors import ConfigError

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if config.command.benchmark:
        prepare_benchmark(config, say)
        if config.command.output_dirpath is None:
            return 0
    elif config.command.output_dirpath is None:
        raise ConfigError("output_dirpath: is required, and missing: +output_dirpath=…")
    files = prepare(config, say)
    if config.command.json_output:
        print(json.dumps(files, ensure_ascii=False))
    else:
        print("\n".join(format_summaries(files)))
        print(f"Details: {config.command.output_dirpath / 'summary.json'}")
    return ROWS_LEFT_OUT if any(each["left_out"] for each in files.values()) else 0
