"""The folder of an output's sidecars, and the places that an earlier version used."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import Bench, Desk, Echo, EchoRequest, asked, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making, run_virtual
from rollout_kit.errors import ConfigError, ModelError, OutputError
from rollout_kit.store.files import SIDECARS, OutputPaths, main_of_sidecar, set_aside
from rollout_kit.store.outputs import files_of
from rollout_kit.types import JsonObject, VerifyResponse

compare = as_function("ng_compare")
merge = as_function("ng_merge")
report = as_function("ng_report")

ROWS = [row(f"q{number}") for number in range(6)]
NUM_SHARDS = 10


class Half(Echo):
    """Some responses get no verdict, and each group is scored."""

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        if body.expected.endswith("4"):
            raise RuntimeError("not now")
        return body.scored(1.0)

    async def verify_group(self, task: JsonObject, members: list[Any]) -> JsonObject:
        scored = [None if each is None else {"reward": 0.5} for each in members]
        return {"members": scored, "group": {}}


def answer(params: JsonObject) -> str:
    if asked(params).endswith("3"):
        raise ModelError("not for us", status=422)
    return asked(params)


def collect_shards(folder: Path) -> None:
    """Ten files of six tasks: four have rollouts, one fails, one waits for its verdict."""
    for number in range(NUM_SHARDS):
        bench = Bench(folder)
        bench.verifier, bench.model = making(Half), ScriptedModel(answer)
        rows = [row(f"{number}.{task}") for task in range(6)]
        keys = {"output_jsonl_fpath": folder / f"rollouts_{number:02}.jsonl", "max_attempts": 1}
        keys |= {"incomplete_groups": "partial", "min_members": 1, "num_repeats": 2}
        assert run_virtual(bench.collect(rows, **keys)) == 2


def run(main: Any, capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    with pytest.raises(SystemExit):
        main([str(each) for each in argv])
    found = capsys.readouterr()
    return found.out + found.err


def test_what_the_shell_counts_is_what_the_commands_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect_shards(tmp_path)
    whole = NUM_SHARDS * 4 * 2
    shell = 'cat rollouts_*.jsonl > final.jsonl; echo "Total rollouts: $(wc -l < final.jsonl)"'
    said = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert said == f"Total rollouts: {whole}\n"
    lines = read_jsonl(tmp_path / "final.jsonl")
    assert {line["kind"] for line in lines} == {"rollout"}
    for name in ("failures", "unverified", "groups"):
        assert len(list(tmp_path.glob(f"rollouts_*.d/{name}.jsonl"))) == NUM_SHARDS, name
    merged = tmp_path / "merged.jsonl"
    argv = [tmp_path / "rollouts_*.jsonl", f"+output_jsonl_fpath={merged}"]
    assert f"Merged 10 files: {whole} rollouts" in run(merge, capsys, *argv)
    counts = json.loads((tmp_path / "merged_aggregate_metrics.json").read_text())["counts"]
    assert (counts["rollouts"], counts["unverified"], counts["failed"]) == (whole, 20, 20)
    said = run(compare, capsys, tmp_path / "final.jsonl", merged)
    assert said.count(f"over {whole} rollouts of 40 tasks") == 2, said
    page = f"+output_fpath={tmp_path}/r.html"
    assert f"{whole} rollouts of 1 file" in run(report, capsys, merged, page)


def test_a_new_output_has_nothing_beside_it_that_a_pattern_takes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.verifier, bench.model = making(Half), ScriptedModel(answer)
    run_virtual(bench.collect(ROWS, incomplete_groups="partial", min_members=1))
    assert {each.name for each in tmp_path.iterdir()} == {
        "tasks.jsonl",
        "rollouts.jsonl",
        "rollouts_aggregate_metrics.json",
        "rollouts.d",
    }
    assert {each.name for each in (tmp_path / "rollouts.d").iterdir()} <= {*SIDECARS}
    assert files_of([str(tmp_path / "rollouts.jsonl")]) == [tmp_path / "rollouts.jsonl"]


def flatten(main: Path) -> None:
    """Give the sidecars the names that an earlier version gave them."""
    folder = main.with_suffix(".d")
    for path in folder.iterdir():
        path.rename(main.with_name(f"{main.stem}_{path.name}"))
    folder.rmdir()


def test_an_output_of_an_earlier_version_goes_on_with_its_names(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.verifier, desk.model = making(Half), ScriptedModel(answer)
    run_virtual(desk.collect(ROWS, max_attempts=1))
    flatten(tmp_path / "rollouts.jsonl")
    before = (tmp_path / "rollouts_failures.jsonl").read_bytes()
    desk.verifier, desk.model = making(Echo), ScriptedModel(asked)
    assert run_virtual(desk.collect(max_attempts=1)) == 0
    assert "1 to verify only" in desk.out.getvalue()
    assert [asked(params) for params in desk.model.calls] == ["q3"], "by another verifier"
    assert len(desk.lines()) == 6 and not (tmp_path / "rollouts.d").exists()
    assert not (tmp_path / "rollouts_unverified.jsonl").exists()
    assert (tmp_path / "rollouts_failures.jsonl").read_bytes() == before
    source = str(tmp_path / "rollouts_failures.jsonl")
    with pytest.raises(ConfigError, match="none carries a response"):
        run_virtual(desk.reverify(input_jsonl_fpath=source))
    assert run_virtual(desk.collect(resume="fresh")) == 0
    assert (tmp_path / "rollouts.d/run.json").exists(), "a new output has the new names"
    assert len(list(tmp_path.glob("rollouts.*_failures.jsonl"))) == 1


def test_sidecars_in_both_places_are_an_error_that_names_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run_virtual(bench.collect(ROWS))
    write_jsonl(tmp_path / "rollouts_failures.jsonl", [{"kind": "failure"}])
    for act in (bench.collect, Desk(tmp_path).reverify):
        with pytest.raises(OutputError) as caught:
            run_virtual(act())
        said = str(caught.value)
        assert f"{tmp_path}/rollouts_failures.jsonl and {tmp_path}/rollouts.d/run.json" in said
    (tmp_path / "rollouts_failures.jsonl").rename(tmp_path / "rollouts_index.bin")
    assert run_virtual(bench.collect()) == 0, "an index is a cache"


@pytest.mark.parametrize("is_flat", [False, True])
def test_all_files_are_moved_aside_together(tmp_path: Path, is_flat: bool) -> None:
    bench = Bench(tmp_path)
    bench.model = ScriptedModel(answer)
    run_virtual(bench.collect(ROWS))
    if is_flat:
        flatten(tmp_path / "rollouts.jsonl")
    moved = set_aside(OutputPaths(tmp_path / "rollouts.jsonl"))
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("rollouts_")]
    [main] = [path for path in moved if path.suffix == ".jsonl" and "_" not in path.stem]
    found = OutputPaths(main)
    assert found.is_flat == is_flat
    assert found.failures.exists() and found.manifest.exists() and found.metrics.exists()


def test_a_sidecar_tells_its_output() -> None:
    for name in ("x/r.d/failures.jsonl", "x/r_failures.jsonl", "x/r_unverified.jsonl"):
        assert main_of_sidecar(Path(name)) == Path("x/r.jsonl")
    for name in ("x/r.jsonl", "x/r.d/other.jsonl", "x/d/failures.jsonl"):
        assert main_of_sidecar(Path(name)) is None
