"""ng_reweight: compute rewards again from stored components."""

from pathlib import Path

from ..collecting.cluster.merging.reweighting import reweight
from ..config.keys import ReweightConfig
from ..errors import ConfigError
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_files(words, ReweightConfig)
    if len(command.inputs) != 1:
        raise ConfigError("name one file of rollouts:  ng_reweight rollouts.jsonl +factors.…=2 …")
    [path], output = map(Path, command.inputs), command.output_jsonl_fpath.expanduser()
    print(reweight(path.expanduser(), output, command.factors, command.pass_threshold))
    return 0
