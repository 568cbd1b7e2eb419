"""What holds with the newest releases of the tools that ours speaks to: `make compat`.

Each tool is installed in an environment of its own, `.compat/<tool>`, at the newest release that
the registry has. Then the checks run, and the table of `docs/compatibility.md` is written. With
names of tools as arguments, only these run, and their rows are renewed. The exit status is 1 if a
check fails.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".compat"
PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"
HEAD = "| tool | release | checked on | check | passed |\n|---|---|---|---|---|\n"

OURS = "ours"
"""The environment that the project's tests run in."""


@dataclass(frozen=True, slots=True)
class Check:
    """What must hold with a tool; `words` are given to Python."""

    says: str
    words: tuple[str, ...]
    runs_in: str = OURS
    """OURS, or the name of the tool in whose environment it runs."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`packages` are what pip installs, without a version; `first` is installed before them, and
    `python` is the oldest version that the tool runs with."""

    name: str
    packages: tuple[str, ...]
    checks: tuple[Check, ...]
    first: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    title: str = ""

    @property
    def environment(self) -> Path:
        return FOLDER / self.name

    @property
    def interpreter(self) -> Path:
        return self.environment / "bin/python"

    @property
    def distribution(self) -> str:
        """The package whose release the table names."""
        return self.title or self.name


def tests(says: str, *words: str, runs_in: str = OURS) -> Check:
    return Check(says, ("-m", "pytest", *words), runs_in)


MODULE = "benchmarks.agreement."

TOOLS = (
    Tool(
        "openai",
        ("openai",),
        (
            tests(
                "OpenAI's client works with every model server, with streams and tools",
                *(
                    "tests/endpoints/test_openai_clients.py",
                    "tests/endpoints/test_open_responses.py",
                ),
                runs_in="openai",
            ),
            tests(
                "OpenAI's batches are sent and read",
                "tests/endpoints/test_batches.py",
                runs_in="openai",
            ),
        ),
        first=(".[dev,batch]",),
    ),
    Tool(
        "anthropic",
        ("anthropic",),
        (
            tests(
                "Anthropic's client works with every model server, and sends batches",
                *("tests/endpoints/test_anthropic_client.py",),
                *("tests/endpoints/test_batch_providers.py",),
                runs_in="anthropic",
            ),
        ),
        first=(".[dev,batch]",),
    ),
    Tool(
        "mcp",
        ("mcp",),
        (
            tests(
                "MCP's client works with rollout_kit, and an MCP server is an environment",
                *("-m", "slow or not slow", "tests/servers/test_mcp.py"),
                runs_in="mcp",
            ),
        ),
        first=(".[dev,mcp]",),
    ),
    Tool(
        "openenv",
        ("openenv",),
        (
            tests(
                "`openenv validate`, OpenEnv's client and OpenEnv's example environment work",
                *("-m", "openenv", "tests/servers/test_openenv_peer.py"),
            ),
        ),
    ),
    Tool(
        "harbor",
        ("harbor",),
        (
            tests(
                "Harbor's models accept rollout_kit's trajectories, and `ng_import` reads jobs",
                *("-m", "formats", "tests/formats", "-k", "harbor"),
            ),
        ),
        python=(3, 12),
    ),
    Tool(
        "inspect",
        ("inspect-ai", "openai"),
        (tests("`ng_import` reads logs", "-m", "formats", "tests/formats", "-k", "inspect"),),
        title="inspect-ai",
    ),
    Tool(
        "verifiers",
        ("verifiers", "uv"),
        (
            tests(
                "verifiers evaluates on running servers, and on environments that it starts",
                *("-m", "trainers", "tests/training/test_verifiers.py"),
                runs_in="verifiers",
            ),
            tests("`ng_import` reads results", "-m", "formats", "tests/formats", "-k", "verifiers"),
        ),
        first=(".[dev,local,math]",),
    ),
    Tool(
        "trl",
        ("trl", "peft", "pillow", "openenv"),
        (
            tests(
                "TRL's trainers load and train on the files of `ng_export`",
                *("-m", "trainers", "tests/training/test_trl.py"),
                runs_in="trl",
            ),
            tests(
                "`GRPOTrainer` trains on an environment of rollout_kit through OpenEnv",
                *("-m", "trainers", "tests/training/test_trl_openenv.py"),
                runs_in="trl",
            ),
        ),
        first=("torch==2.13.0", ".[dev,local,math]"),
    ),
    Tool(
        "nemo-gym",
        ("nemo-gym",),
        (
            Check(
                "`ng_list +check=true` reads every YAML file of the package",
                ("-m", f"{MODULE}gym_files", "{python}"),
            ),
            Check(
                "every key of model servers, environment servers, `simple_agent` and rows is known",
                ("-m", f"{MODULE}gym_keys", "{python}"),
            ),
            Check(
                "findings about broken rollouts are the same as in NeMo Gym's health checks",
                ("-m", f"{MODULE}health", "--python", "{python}"),
            ),
            tests(
                "`ng_import` reads rollouts, and NeMo Gym's models read rollouts of rollout_kit",
                *("-m", "formats", "tests/formats", "-k", "nemo_gym and not lines"),
            ),
        ),
        options=("--ignore-requires-python",),
        python=(3, 13),
    ),
)


@dataclass(slots=True)
class Found:
    """The checks of a tool, and why one has failed."""

    tool: Tool
    release: str
    failed: dict[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[str]:
        today = datetime.now(UTC).date().isoformat()
        name, release = f"`{self.tool.distribution}`", self.release
        for check in self.tool.checks:
            why = self.failed.get(check.says)
            holds = "yes" if why is None else f"no: {why}"
            yield f"| {name} | {release} | {today} | {check.says} | {holds} |\n"


def find_python(least: tuple[int, int]) -> str:
    """The newest interpreter of this machine from that version on: pyenv's, or on the path."""
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), key=_version_in)
    fit = [str(path) for path in pyenv if _version_in(path) >= least]
    if least <= sys.version_info[:2]:
        return sys.executable
    if not fit:
        sys.exit(f"Python {least[0]}.{least[1]} or newer is needed: install it with pyenv or uv")
    return fit[-1]


def _version_in(path: Path) -> tuple[int, ...]:
    return tuple(int(each) for each in path.parents[1].name.split(".")[:2] if each.isdigit())


def install(tool: Tool) -> str:
    """Make or renew the environment of a tool; the release that it has then."""
    if not tool.interpreter.exists():
        words = [find_python(tool.python), "-m", "venv", str(tool.environment)]
        subprocess.run(words, check=True)
    pip = [str(tool.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for each in tool.first:
        named = ["--editable", each] if each.startswith(".") else [each]
        subprocess.run([*pip, *named], cwd=ROOT, check=True)
    subprocess.run([*pip, "--upgrade", *tool.options, *tool.packages], cwd=ROOT, check=True)
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    words = [str(tool.interpreter), "-c", code, tool.distribution]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def run(tool: Tool, check: Check) -> str | None:
    """Why a check fails; None if it holds. Its output is kept beside the environment."""
    python = sys.executable if check.runs_in == OURS else str(tool.interpreter)
    words = [each.format(python=tool.interpreter) for each in check.words]
    own = {f"PEER_{tool.name.upper().replace('-', '_')}": str(tool.environment)}
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        is_pytest = "pytest" in words
        if is_pytest:
            words += [f"--junitxml={report}", "--tb=short"]
        done = subprocess.run(
            [python, *words], cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True
        )
        log = FOLDER / f"{tool.name}.log"
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}\n")
        if is_pytest and report.exists():
            return _judge_report(report)
    if done.returncode == 0:
        return None
    return (done.stdout + done.stderr).strip().rpartition("\n")[2][:200]


def _judge_report(report: Path) -> str | None:
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")}
    broken = count["failures"] + count["errors"]
    if broken:
        case = next(
            each
            for each in suite
            if each.find("failure") is not None or each.find("error") is not None
        )
        return f"{broken} of {count['tests']} tests fail, such as {case.get('name')}"
    return None if count["tests"] > count["skipped"] else "no test ran"


def renew(page: str, found: Sequence[Found]) -> str:
    """The page with the rows of these tools, in the order of TOOLS."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    rows: dict[str, list[str]] = {}
    for row in table.removeprefix(HEAD).splitlines(keepends=True):
        rows.setdefault(row.split("|")[1].strip(), []).append(row)
    for each in found:
        rows[f"`{each.tool.distribution}`"] = list(each.rows())
    order = [f"`{tool.distribution}`" for tool in TOOLS]
    written = "".join("".join(rows.get(name, ())) for name in order)
    return f"{before}{BEGIN}{HEAD}{written}{END}{after}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tools", nargs="*", choices=[*(tool.name for tool in TOOLS), []])
    wanted = options.parse_args().tools
    FOLDER.mkdir(exist_ok=True)
    found: list[Found] = []
    for tool in TOOLS:
        if wanted and tool.name not in wanted:
            continue
        start = time.monotonic()
        (FOLDER / f"{tool.name}.log").unlink(missing_ok=True)
        each = Found(tool, install(tool))
        found.append(each)
        installed_s = time.monotonic() - start
        for check in tool.checks:
            if (why := run(tool, check)) is not None:
                each.failed[check.says] = why
            told = "holds" if why is None else f"FAILS: {why} (.compat/{tool.name}.log)"
            print(f"{tool.distribution} {each.release}: {check.says}: {told}", flush=True)
        spent = {"install_s": round(installed_s), "all_s": round(time.monotonic() - start)}
        print(f"{tool.distribution}: {json.dumps(spent)}", flush=True)
        PAGE.write_text(renew(PAGE.read_text("utf-8"), [each]), "utf-8")
    sys.exit(any(each.failed for each in found))


if __name__ == "__main__":
    main()
