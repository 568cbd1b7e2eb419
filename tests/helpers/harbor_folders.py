"""Folders of tasks in Harbor's format, written for tests, with the rewards that they must give."""

import io
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PYTHON = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"

ROOTS = {"debian": "machine", "swe": "machine"}
"""So that the tests run on every machine that has sessions."""

COMPARE = (
    "#!/bin/bash\n"
    'if [ "$(cat /app/answer.txt)" = "$(cat /tests/secret)" ]; then r=1; else r=0; fi\n'
    "echo $r > /logs/verifier/reward.txt\n"
)

SECRET = "xyzzy-7719"

NO_NETWORK = '[environment]\nnetwork_mode = "no-network"\n'


@dataclass(slots=True)
class Folder:
    """A task: text of each file by its path, and the rewards of its solution and of no answer."""

    name: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    gold: float = 1.0
    empty: float = 0.0

    def write(self, target: Path) -> Path:
        folder = target / self.name
        for path, content in self.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                file.write_text(content)
        return folder


def make(
    name: str,
    *,
    toml: str = "",
    docker: str = "",
    base: str = PYTHON,
    solve: str = f"echo {SECRET} > /app/answer.txt",
    test: str = COMPARE,
    gold: float = 1.0,
    empty: float = 0.0,
    **files: str | bytes,
) -> Folder:
    """A task whose answer is a word in a file, unless it says otherwise. Names of `files` have two
    underscores for a slash and one for a dot."""
    content: dict[str, str | bytes] = {
        "task.toml": f'schema_version = "1.4"\n[task]\nname = "test/{name}"\n[metadata]\n'
        f'license = "MIT"\n{toml}',
        "instruction.md": "Write the word to /app/answer.txt.\n",
        "environment/Dockerfile": f"FROM {base}\nWORKDIR /app\n{docker}",
        "tests/test.sh": test,
        "tests/secret": f"{SECRET}\n",
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{solve}\n",
    }
    own = {path.replace("__", "/").replace("_", "."): text for path, text in files.items()}
    return Folder(name, {**content, **own}, gold, empty)


def steps(name: str, strategy: str, gate: str, gold: float, empty: float) -> Folder:
    """A task of two steps, where the second one builds on the first."""
    files: dict[str, str | bytes] = {
        "task.toml": f'schema_version = "1.4"\nmulti_step_reward_strategy = "{strategy}"\n'
        f'[task]\nname = "test/{name}"\n[environment]\nnetwork_mode = "no-network"\n'
        f'[[steps]]\nname = "one"\n{gate}[[steps]]\nname = "two"\n',
        "environment/Dockerfile": f"FROM {PYTHON}\nWORKDIR /app\n",
        "tests/common.sh": 'check() { [ "$(cat "/app/$1")" = "$2" ] && echo 1 || echo 0; }\n',
    }
    for step, word in (("one", "first"), ("two", "second")):
        files[f"steps/{step}/instruction.md"] = f"Write {word} to /app/{step}.\n"
        files[f"steps/{step}/solution/solve.sh"] = f"echo {word} > /app/{step}\n"
        files[f"steps/{step}/tests/test.sh"] = (
            f". /tests/common.sh\ncheck {step} {word} > /logs/verifier/reward.txt\n"
        )
    files["steps/two/workdir/setup.sh"] = "echo ready > /app/ready\n"
    files["steps/two/tests/test.sh"] = (
        ". /tests/common.sh\n[ -f /app/ready ] && [ ! -e /tests/old ]"
        " && check two second > /logs/verifier/reward.txt\n"
    )
    return Folder(name, files, gold, empty)


def _archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo("inner/word")
        member.size = len(SECRET)
        archive.addfile(member, io.BytesIO(SECRET.encode()))
    return out.getvalue()


def _numbers(content: str) -> str:
    return f"#!/bin/bash\n{COMPARE}[ $r = 1 ] && {content}\nrm -f /logs/verifier/reward.txt\n"


def _dockerfiles() -> Iterator[Folder]:
    """Each instruction, and each base."""
    yield make("plain")
    yield make("debian", base="debian:bookworm-slim")
    yield make("named-root", base="swe:latest")
    yield make("python-full", base=PYTHON.removesuffix("-slim"))
    yield make("env", docker=f"ENV WORD={SECRET}\n", solve='echo "$WORD" > answer.txt')
    yield make("env-old-form", docker=f"ENV WORD {SECRET}\n", solve='echo "$WORD" > answer.txt')
    docker = f'ARG PART={SECRET}\nENV WORD="${{PART}}" OTHER=${{NONE:-x}}\n'
    yield make("arg", docker=docker, solve='echo "$WORD" > answer.txt')
    yield make(
        "copy",
        docker="COPY word.txt /data/\n",
        solve="cp /data/word.txt answer.txt",
        environment__word_txt=SECRET,
    )
    yield make(
        "copy-folder",
        docker="COPY data/ ./data\n",
        solve="cp data/a/word answer.txt",
        environment__data__a__word=SECRET,
    )
    yield make(
        "copy-pattern",
        docker="COPY *.txt /data/\n",
        solve="cp /data/b.txt answer.txt",
        environment__a_txt="a",
        environment__b_txt=SECRET,
    )
    yield make(
        "copy-mode",
        docker="COPY --chmod=600 a.txt /a\n",
        solve=f'[ "$(stat -c %a /a)" = 600 ] && echo {SECRET} > answer.txt',
        environment__a_txt="a",
    )
    yield make(
        "add-archive",
        docker="ADD word.tgz /data/\n",
        environment__word_tgz=_archive(),
        solve="cp /data/inner/word answer.txt",
    )
    yield make(
        "run",
        docker=f"RUN echo {SECRET} > /w && \\\n    # a remark\n    chmod 644 /w\n",
        solve="cp /w answer.txt",
    )
    yield make(
        "run-list", docker=f'RUN ["sh", "-c", "echo {SECRET} > /w"]\n', solve="cp /w answer.txt"
    )
    yield make(
        "shell",
        docker=f'SHELL ["/bin/bash", "-c"]\nRUN [[ 1 == 1 ]] && echo {SECRET} > w\n',
        solve="cp w answer.txt",
    )
    yield make(
        "workdir",
        docker="WORKDIR deep\nRUN pwd > /where\n",
        solve=f'[ "$(cat /where)" = /app/deep ] && echo {SECRET} > ../answer.txt',
    )
    yield make(
        "removed",
        docker=f"RUN echo {SECRET} > /w && rm /etc/services\n",
        solve="[ ! -e /etc/services ] && cp /w answer.txt",
    )


def _tests() -> Iterator[Folder]:
    """Reward files, time-outs, users, variables, and verifiers apart."""
    both = COMPARE + "echo '{\"reward\": '$r'}' > /logs/verifier/reward.json\n"
    yield make("json", test=both + "rm /logs/verifier/reward.txt\n")
    yield make(
        "json-wins",
        test=COMPARE + "echo '{\"reward\": 0.25}' > /logs/verifier/reward.json\n",
        gold=0.25,
        empty=0.25,
    )
    named = COMPARE + 'echo "{\\"a\\": $r, \\"b\\": 0}" > /logs/verifier/reward.json\n'
    yield make("json-names", test=named, gold=0.5)
    yield make(
        "share",
        test=COMPARE + 'echo "$r * 0.5" | sed "s/1 . //; s/0 . .*/0/" >'
        " /logs/verifier/reward.txt\n",
        gold=0.5,
    )
    yield make("no-number", test="echo great > /logs/verifier/reward.txt\n", gold=0.0)
    yield make("no-file", test="true\n", gold=0.0)
    yield make("not-finite", test="echo nan > /logs/verifier/reward.txt\n", gold=0.0)
    yield make("status-does-not-count", test=COMPARE + "exit 3\n")
    late = COMPARE + "sleep 60\n"
    yield make("late-tests", toml="[verifier]\ntimeout_sec = 0.5\n", test=late, gold=0.0)
    yield make(
        "late-agent",
        toml="[agent]\ntimeout_sec = 0.3\n",
        gold=0.0,
        solve=f"sleep 60; echo {SECRET} > /app/answer.txt",
    )
    yield make(
        "verifier-env",
        toml=f'[verifier.env]\nWORD = "{SECRET}"\n',
        test=COMPARE.replace("$(cat /tests/secret)", "$WORD"),
    )
    yield make(
        "default-of-variable",
        toml=f'[environment.env]\nW = "${{NO_SUCH:-{SECRET}}}"\n',
        solve='echo "$W" > answer.txt',
    )
    yield make(
        "solution-env",
        toml=f'[solution.env]\nW = "{SECRET}"\n',
        solve='echo "$W" > /app/answer.txt',
    )
    yield make(
        "workdir-of-toml",
        toml='[environment]\nworkdir = "/app/x"\n',
        docker="RUN mkdir x\n",
        solve=f"echo {SECRET} > ../answer.txt",
    )
    yield make(
        "network-off",
        toml=NO_NETWORK,
        solve=f"(echo > /dev/tcp/1.1.1.1/80) 2>/dev/null || echo {SECRET} > /app/answer.txt",
    )
    yield make("old-network", toml="[environment]\nallow_internet = false\n")
    yield make("old-sizes", toml='[environment]\nmemory = "512M"\nstorage = "1G"\n')
    yield make("old-version", toml="").__class__(
        "old-version",
        {**make("x").files, "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60\n'},
    )
    yield make(
        "healthcheck",
        toml='[environment.healthcheck]\ncommand = "touch /app/up"\n',
        solve=f"[ -e /app/up ] && echo {SECRET} > /app/answer.txt",
    )
    yield make("canary", instruction_md="<!-- canary GUID 1 -->\n\nWrite the word.\n")
    yield make(
        "changed-configuration",
        solve=f"echo {SECRET} > /etc/word; cp /etc/word /app/answer.txt",
        test=COMPARE.replace("/app/answer.txt", "/etc/word"),
    )
    yield make(
        "removed-file",
        docker="COPY old.txt .\n",
        environment__old_txt="x",
        solve="rm old.txt",
        test="[ -e /app/old.txt ]; echo $? > /logs/verifier/reward.txt\n",
    )
    yield make(
        "new-program",
        solve="printf '#!/bin/sh\\necho yes\\n' > /usr/local/bin/yesno\n"
        "chmod +x /usr/local/bin/yesno",
        test='[ "$(yesno)" = yes ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n',
    )


def _apart() -> Iterator[Folder]:
    """Verifiers in an environment of their own, and steps."""
    apart = '[verifier]\nenvironment_mode = "separate"\n'
    take = COMPARE.replace("/app/answer.txt", "/logs/artifacts/answer.txt")
    solve = f"echo {SECRET} > /logs/artifacts/answer.txt"
    yield make("separate", toml=apart, solve=solve, test=take)
    yield make("separate-sees-no-other-file", toml=apart, gold=0.0)
    listed = make("separate-artifact", toml=apart)
    head = 'artifacts = ["/app/answer.txt"]\n'
    listed.files["task.toml"] = head + str(listed.files["task.toml"])
    yield listed
    own = f"FROM {PYTHON}\nENV KEY=own\nCOPY test.sh secret /tests/\n"
    yield make(
        "separate-image",
        toml=apart,
        solve=solve,
        tests__Dockerfile=own,
        test='#!/bin/bash\n[ "$KEY" = own ] || exit 1\n' + take,
    )
    yield make(
        "separate-settings",
        toml="[verifier.environment]\nmemory_mb = 256\n",
        solve=solve,
        test=take,
    )
    hook = '[[verifier.collect]]\ncommand = "cp /app/answer.txt /logs/artifacts/"\n'
    yield make("collected", toml=apart + hook, test=take)
    yield steps("steps-mean", "mean", "", 1.0, 0.0)
    yield steps("steps-final", "final", "", 1.0, 0.0)
    yield steps("steps-gate", "mean", "min_reward = 1.0\n", 1.0, 0.0)
    as_user = "RUN echo 'ann:x:1500:1500::/home/ann:/bin/bash' >> /etc/passwd && chown 1500 /app\n"
    yield make(
        "user",
        docker=as_user + "USER ann\n",
        base=PYTHON,
        solve=f'[ "$(id -u)" = 1500 ] && echo {SECRET} > /app/answer.txt',
    )


def list_folders() -> list[Folder]:
    found = [*_dockerfiles(), *_tests(), *_apart()]
    assert len({each.name for each in found}) == len(found)
    return found


def write_all(target: Path) -> list[Path]:
    return [each.write(target) for each in list_folders()]
