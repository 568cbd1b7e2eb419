"""ng_package_environment: write an environment as a package for verifiers and prime-rl."""

from pathlib import Path

from ..authoring.hub_package import write_package
from ..config.keys import PackageConfig
from . import entry


def main(words: list[str]) -> int:
    keys = entry.parse_keys(words, PackageConfig)
    rows = Path(keys.input_jsonl_fpath) if keys.input_jsonl_fpath else None
    folder = Path(keys.output_dir or keys.environment)
    paths = write_package(
        keys.environment,
        folder,
        rows,
        keys.model_name,
        keys.base_url,
        api_key_var=keys.api_key_var,
        num_repeats=str(keys.num_repeats),
    )
    for path in paths:
        print(f"wrote {path}")
    print("\nIn an environment with verifiers:")
    print(f"  cd {folder} && pip install . && vf-eval @ eval.toml")
    return 0
