"""Weights in a bucket: a real S3 server, a trainer that writes there, servers that follow."""

import asyncio
import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partialmethod
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from s3_server import BUCKET, serve_s3
from support import use_model
from test_weight_folder import Served
from test_weights import save

from rollout_kit.errors import ConfigError
from rollout_kit.rl import CheckpointManager
from rollout_kit.rl.bucket import BucketError, S3Bucket, read_place
from rollout_kit.rl.weights.folder import check_step
from rollout_kit.rl.weights.step_bucket import StepBucket
from rollout_kit.rl.weights.sync import WeightSync
from rollout_kit.serving import registry

numbers = count()


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with serve_s3() as client:
        yield client


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "trainer"))


@pytest.fixture
def url(s3: Any) -> str:
    return f"s3://{BUCKET}/run_{next(numbers)}/weights"


def write(
    place: str | CheckpointManager, version: int, *, keep_last: int = 3, files: int = 1
) -> Path:
    """A step as a trainer writes it: one tensor, whose bytes are the version, and other files."""
    is_url = isinstance(place, str)
    manager = CheckpointManager(place, keep_last=keep_last) if is_url else place
    with manager.write(version) as folder:
        save(folder, {"weight": bytes([version]) * 64})
        for number in range(files):
            (folder / f"part_{number}.json").write_text(json.dumps(version))
    return folder


def names(s3: Any, url: str) -> list[str]:
    path = url.removeprefix(f"s3://{BUCKET}/")
    found = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{path}/").get("Contents", [])
    return [each["Key"].removeprefix(f"{path}/") for each in found]


def follow(url: str, machine: Path, **keys: Any) -> Served:
    """A model server on another machine than the trainer."""
    return Served(url, cache_dir=str(machine), **keys)  # type: ignore[arg-type]


def is_whole(served: Served, version: int) -> bool:
    """Whether the copy that was loaded is that version and no other."""
    step = served.follower.step
    assert step is not None
    check_step(step)
    parts = {json.loads(path.read_text()) for path in step.folder.glob("part_*.json")}
    weight = (step.folder / "model.safetensors").read_bytes()[-64:]
    return parts == {version} and weight == bytes([version]) * 64


def test_a_server_elsewhere_follows_the_trainer(s3: Any, url: str, tmp_path: Path) -> None:
    served = follow(url, tmp_path / "server")
    assert served.look() == 0
    write(url, 1)
    assert served.look() == 1 and is_whole(served, 1)
    for version in (2, 3, 4, 5):
        write(url, version)
    assert served.look() == 5 and is_whole(served, 5) and served.loaded == [1, 5]
    assert {name.partition("/")[0] for name in names(s3, url)} == {"step_3", "step_4", "step_5"}
    copies = [path.name for path in served.follower.folder.glob("step_*")]
    assert sorted(copies) == ["step_1", "step_5"]  # and none that was skipped
    write(url, 6)
    assert served.look() == 6
    copies = [path.name for path in served.follower.folder.glob("step_*")]
    assert sorted(copies) == ["step_5", "step_6"]


def test_a_trainer_continues_on_another_machine(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CheckpointManager(url, keep_last=1)
    write(url, 1)
    first.keep_best(1)
    write(url, 2, keep_last=1)
    write(url, 3, keep_last=1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    found = CheckpointManager(url).latest()
    assert found is not None and found.version == 3 and str(found) == f"{url}/step_3"
    check_step(found)
    assert found.folder.is_relative_to(tmp_path / "another")
    assert [step.version for step in StepBucket(url).find()] == [3, 1]  # the best one is kept


class Killed(BaseException):
    """What happens after it does not happen."""


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "written_again"])
def test_whenever_the_trainer_is_killed_no_half_step_is_loaded(
    is_there: bool, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of its writes; the next trainer writes a step above it."""
    changes = {name: getattr(S3Bucket, name) for name in ("upload", "remove", "write")}
    manager, served = CheckpointManager(url), follow(url, tmp_path / "server")
    for kill_at in count():
        before, version = 3 * kill_at + 1, 3 * kill_at + 2
        write(manager, before, files=2)
        assert served.look() == before
        if is_there:
            write(manager, version, files=3)
        left = iter(range(kill_at))

        def change(bucket: S3Bucket, *given: Any, name: str, left: Any = left) -> Any:
            if next(left, None) is None:
                raise Killed
            return changes[name](bucket, *given)

        with monkeypatch.context() as patch, suppress(Killed):
            for name in changes:
                patch.setattr(S3Bucket, name, partialmethod(change, name=name))
            write(manager, version)
            left = None
        found = served.look()
        assert is_whole(served, found)
        if left is None:
            assert found == version and kill_at > 4
            return
        assert found in (before, version)
        write(manager, version + 1)
        assert served.look() == version + 1 and is_whole(served, version + 1)


KILLED_TRAINER = """
import os, signal, sys
from rollout_kit.rl import CheckpointManager
from rollout_kit.rl.bucket import S3Bucket
upload = S3Bucket.upload
def upload_or_die(self, path, name):
    if path.name == "STABLE":
        os.kill(os.getpid(), signal.SIGKILL)
    upload(self, path, name)
S3Bucket.upload = upload_or_die
with CheckpointManager(sys.argv[1]).write(1) as folder:
    (folder / "model.safetensors").write_bytes(b"x" * 100)
"""


def test_a_process_that_is_killed_before_the_marker_leaves_no_step(
    s3: Any, url: str, tmp_path: Path
) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_TRAINER, url])
    assert ended.returncode == -signal.SIGKILL
    assert names(s3, url) == ["step_1/model.safetensors"]
    served = follow(url, tmp_path / "server")
    assert served.look() == 0
    write(url, 1)
    assert served.look() == 1 and is_whole(served, 1)


def test_a_step_that_is_written_again_while_it_is_read_is_read_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(url, 1, files=3)
    served = follow(url, tmp_path / "server")
    download = S3Bucket.download
    rewrites = iter([True])

    def download_and_rewrite(bucket: S3Bucket, name: str, path: Path) -> None:
        download(bucket, name, path)
        if next(rewrites, False):
            write(url, 1, files=1)

    monkeypatch.setattr(S3Bucket, "download", download_and_rewrite)
    assert served.look() == 0 and served.loaded == []
    assert f"{url}/step_1 is not loaded" in caplog.text
    assert served.look() == 1 and is_whole(served, 1)


def test_a_step_of_another_tool_needs_no_list_of_files(s3: Any, url: str, tmp_path: Path) -> None:
    path = url.removeprefix(f"s3://{BUCKET}/")
    save(tmp_path / "made", {"weight": b"x" * 64})
    for name in ("model.safetensors", "config.json"):
        s3.upload_file(str(tmp_path / "made" / name), BUCKET, f"{path}/step_4/{name}")
    s3.put_object(Bucket=BUCKET, Key=f"{path}/step_4/", Body=b"")  # as a console does
    served = follow(url, tmp_path / "server")
    assert served.look() == 0
    s3.put_object(Bucket=BUCKET, Key=f"{path}/step_4/STABLE", Body=b"")
    assert served.look() == 4


def test_a_damaged_object_is_refused_and_the_version_in_use_stays(
    s3: Any, url: str, tmp_path: Path
) -> None:
    write(url, 1)
    served = follow(url, tmp_path / "server")
    assert served.look() == 1
    write(url, 2)
    path = url.removeprefix(f"s3://{BUCKET}/")
    key = f"{path}/step_2/part_0.json"
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"7")
    assert served.look() == 1
    assert "its checksum differs" in str(served.follower.figures()["refused"])


def test_the_copies_of_a_machine_are_shared(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    write(url, 1)
    one, two = follow(url, tmp_path / "server"), follow(url, tmp_path / "server")
    assert one.look() == 1

    def refuse(*given: Any) -> None:
        raise AssertionError("downloaded twice")

    monkeypatch.setattr(S3Bucket, "download", refuse)
    assert two.look() == 1 and is_whole(two, 1)


def test_a_bucket_that_cannot_be_read_is_an_error_at_the_start_and_said_once_later(
    s3: Any, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = follow("s3://nowhere/run", tmp_path / "server")
    with pytest.raises(BucketError, match="s3://nowhere/run: there is no such bucket"):
        asyncio.run(missing.follower.start())

    async def main() -> None:
        served = follow(url, tmp_path / "server", poll_s=1e-3)
        write(url, 1)
        await served.follower.start()
        fails = iter(range(3))
        is_over = asyncio.Event()
        find = served.follower._steps.find

        def find_later() -> Any:
            if next(fails, None) is not None:
                raise BucketError("s3://… cannot be listed: Connection refused")
            loop.call_soon_threadsafe(is_over.set)
            return find()

        loop = asyncio.get_running_loop()
        served.follower._steps.find = find_later  # type: ignore[method-assign]
        await is_over.wait()
        write(url, 2)
        await served.follower.wait_for(2, timeout_s=60)
        await served.follower.stop()

    asyncio.run(main())
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        "policy_model: s3://… cannot be listed: Connection refused; version 1 stays in use"
    ]


def test_a_model_server_answers_with_the_weights_of_a_bucket(url: str, tmp_path: Path) -> None:
    local_model: Any = registry.load("responses_api_models", "local_model")
    checkpoint = Path(sys.modules[local_model.__module__].__file__ or "").parent / "checkpoint"

    async def scenario(model: Any) -> None:
        assert (await model.weight_version())["version"] == 0
        with CheckpointManager(url, base=checkpoint).write(3) as folder:
            shutil.copyfile(checkpoint / "model.safetensors", folder / "model.safetensors")
        assert (await model.load_weights({}))["version"] == 3
        response = await model.responses({"input": "What is 12+30?", "temperature": 0})
        assert response["output"][-1]["policy_version_first"] == 3

    sync = {"path": url, "poll_s": 1e6, "cache_dir": str(tmp_path / "server")}
    use_model(local_model, scenario, weight_sync=sync)


def test_other_stores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_place("run/weights", "path") is None
    assert read_place(Path("s3://some/run/"), "path") == "s3://some/run"
    for place in ("gs://bucket/run", "hf://model", "s3://"):
        with pytest.raises(ConfigError, match="this is a folder, or s3://bucket/path"):
            CheckpointManager(place)
        with pytest.raises(ValueError, match=r"weight_sync.path=.*this is a folder, or s3://"):
            WeightSync(path=place)
    with pytest.raises(ValueError, match="cache_dir belongs to a path with s3://"):
        WeightSync(path="run", cache_dir="here")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"s3://bucket/run cannot be used .*rollout-kit\[s3\]"):
        CheckpointManager("s3://bucket/run")
