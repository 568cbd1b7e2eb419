"""Tasks in Harbor's folders: rewards of solutions, cheats, what does not run, and the commands."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harbor_folders import ROOTS, SECRET, Folder, list_folders, make, steps
from support import NO_NAMESPACES, may_isolate

from rollout_kit.authoring.playing import play, serving_shell
from rollout_kit.errors import RolloutError
from rollout_kit.serving.harbor.task_folder import read_task
from rollout_kit.serving.harbor.task_rows import make_row

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

RUN = "import sys; from rollout_kit.commands import entry; entry.main(sys.argv[1], sys.argv[2:])"


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", RUN, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


NAMES = [each.name for each in list_folders()]

SOME = ["run", "separate", "steps-gate", "user", "json-names", "new-program", "late-agent"]


def play_folder(folder: Folder, target: Path, **settings: Any) -> tuple[float, float]:
    """The rewards of its solution and of an agent that does nothing."""

    async def main() -> tuple[float, float]:
        task = read_task(folder.write(target), ROOTS)
        assert not task.problems
        row = make_row(task, with_gold=True)
        given = {"roots": ROOTS, "task_folders": [str(target)], **settings}
        async with serving_shell(**given) as peers:
            gold, empty = await asyncio.gather(
                play(peers, row, row["gold_items"]), play(peers, row, [])
            )
        return gold["reward"], empty["reward"]

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", SOME)
def test_a_solution_has_its_reward_and_doing_nothing_has_none(name: str, tmp_path: Path) -> None:
    folder = next(each for each in list_folders() if each.name == name)
    assert play_folder(folder, tmp_path) == (folder.gold, folder.empty)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SOME])
def test_so_it_is_with_all_folders(name: str, tmp_path: Path) -> None:
    folder = next(each for each in list_folders() if each.name == name)
    assert play_folder(folder, tmp_path) == (folder.gold, folder.empty)


HARD = make("hard", toml='[environment]\nnetwork_mode = "no-network"\nmemory_mb = 200\n'
            "storage_mb = 64\n")  # fmt: skip

ATTEMPTS = {
    "the tests": "cat /tests/* > answer.txt",
    "the tests, anywhere": "grep -rs xyzzy / --exclude-dir=proc --exclude-dir=usr"
    " --exclude-dir=sys --exclude=answer.txt -h > answer.txt",
    "the tests, when they come": "(setsid sh -c 'while :; do cp /tests/secret answer.txt; done'"
    " > /dev/null 2>&1 &)",
    "own tests": "mkdir -p /tests && echo x > /tests/secret && echo x > answer.txt",
    "own tests that stay": "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' >"
    " /tests/test.sh; chmod 555 /tests/test.sh; chattr +i /tests/test.sh",
    "tests that lead here": "rm -rf /tests; ln -s /app /tests; echo x > secret;"
    " echo x > answer.txt",
    "a reward file": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "a reward in JSON": "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "a reward that is a link": "echo 1 > r; ln -sf /app/r /logs/verifier/reward.json",
    "a reward through a link": "mkdir v; rm -rf /logs/verifier; ln -s /app/v /logs/verifier;"
    " echo 1 > v/reward.json",
    "logs that lead here": "mkdir -p l/verifier; rm -rf /logs; ln -s /app/l /logs;"
    " echo 1 > l/verifier/reward.json",
    "logs that are a file": "rm -rf /logs; echo 1 > /logs",
    "a reward later": "(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.json; done'"
    " > /dev/null 2>&1 &)",
    "the solution": "bash /solution/solve.sh; cat /solution/* > answer.txt",
    "another bash": "printf '#!/bin/true\\n' > b; chmod +x b; cp b /bin/bash; cp b /usr/bin/bash",
    "another cat": "printf '#!/bin/sh\\necho x\\n' > /usr/local/bin/cat; chmod +x"
    " /usr/local/bin/cat; cp /usr/local/bin/cat /usr/bin/cat; cp /usr/bin/cat /opt/bin/cat",
    "a start-up file": "echo 'cat() { echo x; }' | tee -a /root/.bashrc /root/.profile"
    " /etc/profile /etc/bash.bashrc; echo 'BASH_ENV=/app/e' >> /etc/environment",
    "a library to load first": "echo 'int puts(const char *s) { return 0; }' > p.c; gcc -shared -o"
    " /usr/lib/p.so p.c; echo /usr/lib/p.so > /etc/ld.so.preload",
    "another linker": "cp /bin/true /lib64/ld-linux-x86-64.so.2; rm -f /etc/ld.so.cache",
    "Python's start": "d=$(python3 -c 'import site; print(site.getsitepackages()[0])');"
    " echo 'import os' > $d/sitecustomize.py; echo 'import os' > $d/a.pth",
    "a user of its own": "echo 'root::0:0::/app:/app/sh' > /etc/passwd",
    "a named pipe": "rm -f answer.txt; mkfifo answer.txt",
    "a loop of links": "ln -sf answer.txt answer.txt",
    "a link out of the overlay": "ln -sf /proc/1/root/tests/secret answer.txt",
    "a link to the layers": "ln -sf ../../../../layers/0/0/upper answer.txt",
    "a name that removes": 'echo \'["/usr/bin/cat", "/tests"]\' > /.removed',
    "the host's files": "cat /etc/shadow /root/.ssh/* /work/* /proc/1/environ > answer.txt",
    "the host's processes": "kill -9 -1; for p in /proc/[0-9]*; do cat $p/environ; done",
    "the first process": "cat /proc/1/environ /proc/1/maps /proc/1/fd/*; kill -9 1; ls -l"
    " /proc/1/root/layers",
    "the memory of another": "python3 -c \"open('/proc/1/mem', 'r+b').write(b'x')\"",
    "kernel settings": "echo 1 > /proc/sys/kernel/panic; echo c > /proc/sysrq-trigger; mount -t"
    " proc x /proc; umount /; unshare -Urm true",
    "a device": "mknod d b 254 0; mknod m c 1 1; cat d m > answer.txt; ls /dev/vda /dev/sda",
    "setuid": "cp /bin/bash s; chmod 6755 s; ./s -p -c 'cat /proc/1/environ' > answer.txt",
    "capabilities": "python3 -c \"import os; os.setxattr('/app', 'security.capability', b'x')\";"
    " setcap cap_sys_admin+ep /bin/cat",
    "the network": "for h in 1.1.1.1/80 169.254.169.254/80 127.0.0.1/22; do (echo >"
    " /dev/tcp/$h) 2> /dev/null && echo open > answer.txt; done; ls /run /var/run",
    "sockets of the host": 'python3 -c "import socket; s = socket.socket(socket.AF_UNIX);'
    " s.connect('/run/docker.sock')\"",
    "a fork bomb": "b() { b | b & }; b; sleep 1",
    "all of the disk": "head -c 1G /dev/zero > big; head -c 1G /dev/zero > /dev/shm/big",
    "all of the memory": "python3 -c 'a = [bytearray(1 << 24) for _ in range(100)]'",
    "a process that stays": "(trap '' TERM HUP INT; setsid nohup sleep 1000 > /dev/null 2>&1 &)",
    "tricks of a terminal": 'python3 -c "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI,'
    " b'x')\"; script -qc 'echo 1 > /logs/verifier/reward.txt' /dev/null < /dev/null",
    "many files": "python3 -c \"[open(f'/app/{n}', 'w') for n in range(30000)]\"",
    "a deep folder": "python3 -c \"import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\"",
    "a strange name": 'touch "$(printf \'a\\nb\\xff\')" -- "-rf" ".."',
}


@pytest.mark.parametrize("part", range(4))
def test_no_attempt_gets_a_reward_or_the_secret(part: int, tmp_path: Path) -> None:
    assert len(ATTEMPTS) >= 40
    chosen = list(ATTEMPTS.items())[part::4]

    async def main() -> None:
        row = make_row(read_task(HARD.write(tmp_path), ROOTS), with_gold=True)
        async with serving_shell(roots=ROOTS, task_folders=[str(tmp_path)]) as peers:
            places = asyncio.Semaphore(3)

            async def attempt(name: str, command: str) -> None:
                arguments = json.dumps({"command": command, "timeout_s": 5})
                call = {"type": "function_call", "name": "exec", "arguments": arguments}
                async with places:
                    found = await play(peers, row, [call])
                assert found["reward"] == 0.0, (name, found)
                assert SECRET not in json.dumps(found["replies"]), name

            await asyncio.gather(*(attempt(*each) for each in chosen))
            gold = await play(peers, row, row["gold_items"])
            assert gold["reward"] == 1.0

    asyncio.run(main())


def test_a_program_that_the_agent_replaces_is_used_if_the_owner_wants_it(tmp_path: Path) -> None:
    solve = "printf '#!/bin/sh\\necho yes\\n' > /usr/bin/arch"
    test = '[ "$(arch)" = yes ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
    folder = make("replaced", solve=solve, test=test)
    assert play_folder(folder, tmp_path) == (0.0, 0.0)
    assert play_folder(folder, tmp_path, keep_programs=True) == (1.0, 0.0)


def test_a_step_begins_with_what_the_last_one_left_and_without_its_tests(tmp_path: Path) -> None:
    async def main() -> None:
        task = read_task(steps("two", "mean", "min_reward = 1.0\n", 1.0, 0.0).write(tmp_path), {})
        row = make_row(task)
        offered = [each["name"] for each in row["responses_create_params"]["tools"]]
        assert "finish_step" in offered
        async with serving_shell(task_folders=[str(tmp_path)]) as peers:
            calls = [
                ("exec", {"command": "sleep 600 & echo first > one"}),
                ("finish_step", {}),
                ("exec", {"command": "cat one; ls /tests; pgrep sleep; ls ready"}),
                ("finish_step", {}),
                ("finish_step", {}),
            ]
            items = [
                {"type": "function_call", "name": name, "arguments": json.dumps(arguments)}
                for name, arguments in calls
            ]
            found = await play(peers, row, items)
        assert found["replies"][1].startswith("Step 2 of 2:\n\nWrite second")
        assert found["replies"][2].startswith("first\nready\n")
        assert found["replies"][3:] == ["All steps are done."] * 2
        assert found["reward"] == 0.5
        assert [each["rewards"] for each in found["steps"]] == [{"reward": 1.0}, {"reward": 0.0}]

    asyncio.run(main())


REFUSED = {
    "FROM alpine:3\n": "environment/Dockerfile:1: FROM: there is no alpine:3 here",
    "FROM {base}\n\nEXPOSE 80\n": "environment/Dockerfile:3: EXPOSE is not supported",
    "FROM {base}\nCOPY --from=x a b\n": "environment/Dockerfile:2: COPY: --from is not supported",
    "FROM {base}\nADD https://a.b/c /c\n": "2: ADD: https://a.b/c is not in the folder",
    "FROM {base}\nCOPY ../x /x\n": "2: COPY: ../x leads out of the folder",
    "FROM {base}\nCOPY no /x\n": "2: COPY: there is no file no",
    "FROM {base}\nFROM {base}\n": "2: FROM: a second stage is not supported",
    "FROM {base}\nRUN <<E\nls\nE\nVOLUME /x\n": "2: a here-document is not supported",
    "FROM {base}\nRUN a && \\\n  b\nHEALTHCHECK x\n": "4: HEALTHCHECK is not supported",
    "RUN a\n": "1: RUN before FROM",
}


@pytest.mark.parametrize("text", REFUSED)
def test_the_line_that_prevents_a_task_is_named(text: str, tmp_path: Path) -> None:
    folder = make("refused")
    base = str(folder.files["environment/Dockerfile"]).split()[1]
    folder.files["environment/Dockerfile"] = text.format(base=base)
    problems = read_task(folder.write(tmp_path), {}).problems
    assert REFUSED[text] in str(problems[0])


TOML = {
    "[environment]\ngpus = 1\n": "task.toml:7: no GPU",
    '[environment]\nos = "windows"\n': "task.toml:7: windows does not run here",
    '[environment.env]\nKEY = "${OPENAI_API_KEY}"\n': "task.toml:7: ${OPENAI_API_KEY} is",
    '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n': "task.toml:8: wants",
    '[environment]\nnetwork_mode = "some"\n': "task.toml:7: environment.network_mode",
    '[[environment.mcp_servers]]\nname = "x"\n': "task.toml:6: MCP servers",
    '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n': "takes no",
}


@pytest.mark.parametrize("text", TOML)
def test_so_is_the_line_of_a_task_toml(text: str, tmp_path: Path) -> None:
    problems = read_task(make("refused", toml=text).write(tmp_path), ROOTS).problems
    assert TOML[text] in str(problems[0])


def test_a_newer_schema_and_several_containers_do_not_run(tmp_path: Path) -> None:
    folder = make("newer", environment__docker_compose_yaml="services: {}\n")
    folder.files["environment/docker-compose.yaml"] = "services: {}\n"
    folder.files["task.toml"] = 'schema_version = "1.5"\n'
    found = [str(each) for each in read_task(folder.write(tmp_path), ROOTS).problems]
    assert found == [
        "task.toml:1: schema 1.5 is newer than 1.4",
        "environment/docker-compose.yaml:1: several containers are not supported",
    ]


def test_rows_name_only_folders_that_the_owner_gives(tmp_path: Path) -> None:
    async def main() -> None:
        row = make_row(read_task(make("mine").write(tmp_path), ROOTS))
        async with serving_shell() as peers:
            with pytest.raises(RolloutError, match="is not below one of task_folders"):
                await play(peers, row, [])
        async with serving_shell(task_folders=[str(tmp_path)]) as peers:
            (tmp_path / "mine/tests/secret").write_text("another")
            with pytest.raises(RolloutError, match="has changed since its row was made"):
                await play(peers, row, [])

    asyncio.run(main())


def test_a_collection_is_run_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (make("one"), make("two")):
        folder.write(tmp_path / "tasks")
    model = "responses_api_models/simulated_model/configs/simulated_model.yaml"
    done = run(
        "ng_collect_rollouts",
        "+harbor_tasks=tasks",
        f"+config_paths=[{model}]",
        "+output_jsonl_fpath=o.jsonl",
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert {line["task_id"]: line["reward"] for line in lines} == {"test/one": 0.0, "test/two": 0.0}
    assert all("gold_items" not in line and line["license"] == "MIT" for line in lines)


def write_definition(folder: Path) -> None:
    make("one").write(folder / "tasks")
    about = {"about": "words", "rows": 1, "metric": "avg@1", "license": "MIT", "citation": "-"}
    source = {"type": "harbor", "folder": "tasks"}
    text = json.dumps({**about, "follows": "-", "source": source})
    (folder / "words.yaml").write_text(text)


def test_a_definition_may_name_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_definition(tmp_path)
    model = "responses_api_models/simulated_model/configs/simulated_model.yaml"
    done = run("ng_collect_rollouts", "+benchmark=words.yaml", f"+config_paths=[{model}]")
    assert done.returncode == 0, done.stderr
    assert "Benchmark words: avg@1 0.000" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_audit_of_a_collection_knows_its_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_definition(tmp_path)
    done = run("ng_audit_verifier", "+benchmark=words.yaml", "+output_fpath=audit.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No flags" in done.stdout


def test_the_check_says_what_runs(tmp_path: Path) -> None:
    make("good").write(tmp_path)
    bad = make("bad", base="alpine")
    bad.write(tmp_path)
    done = run("ng_check_harbor_tasks", str(tmp_path), "+run=true")
    assert done.returncode == 1
    assert f"{tmp_path}/good: runs, solution 1, empty answer 0\n" in done.stdout
    assert f"{tmp_path}/bad: does not run\n  environment/Dockerfile:1: FROM" in done.stdout
    assert "1 of 2 tasks run here" in done.stdout
