"""ng_package_environment: what it writes, and what it refuses."""

import tomllib
from pathlib import Path

import pytest
import yaml
from command import as_function
from workplace import ROOT

SERVERS = sorted(
    path.parents[1].name
    for path in (ROOT / "resources_servers").glob("*/configs/*.yaml")
    if path.stem == path.parents[1].name
)

package = as_function("ng_package_environment")


def run(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        package(words)
    return ended.value.code


@pytest.mark.parametrize("server", SERVERS)
def test_each_shipped_environment_becomes_a_package(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(f"+environment={server}", "+output_dir=out/my-env", "+model_name=tiny") == 0
    folder = tmp_path / "out/my-env"
    about = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    assert about["project"]["name"] == "my-env"
    wanted = tomllib.loads((folder / "eval.toml").read_text("utf-8"))
    assert wanted["model"] == "tiny" and wanted["env"]["taskset"]["id"] == "my_env"
    source = (folder / "my_env/__init__.py").read_text("utf-8")
    compile(source, "my_env", "exec")
    assert "class MyEnv(RolloutTaskset)" in source
    [config] = [line.strip(' ,"') for line in source.splitlines() if "/configs/" in line][:1]
    blocks = yaml.safe_load((ROOT / config).read_text("utf-8"))
    assert server in blocks[server]["resources_servers"]
    rows = (folder / "my_env/tasks.jsonl").read_bytes()
    assert rows == (ROOT / f"resources_servers/{server}/data/example.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("+environment=math_with_verfy",), "did you mean 'math_with_verify'"),
        (("+environment=mcqa", "+output_dir=9lives"), "small letters"),
        (("+environment=mcqa", "+output_dir=."), "small letters"),
        (("+environment=mcqa", "+output_dir=there"), "already exists"),
        (("+environment=mcqa", "+input_jsonl_fpath=no.jsonl"), "there is no such file"),
        ((), "environment"),
    ],
)
def test_what_cannot_be_a_package_is_refused(
    words: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert run(*words) != 0
    said = capsys.readouterr().err
    assert why in said and said.count("\n") <= 2
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
