"""Train a tiny model on its own rollouts, and draw what it learns.

python examples/grpo/demo.py [--lesson sums] [--folder results/grpo] [--steps 90] [--seed 0]

The lesson is `sums`, `shell`: the model in the hands of a harness, `mix`: three environments, with
evaluations on the way, `epochs`: the same 400 sums in each epoch, of which `--task-policy` may
leave some out, or `distillation`: a worse copy of the model learns from it. With `--algorithm ppo`
examples/ppo trains it. Model server, collector, buffer and trainer are separate
processes; one that ends too early is started again and continues. With `--kill` this script itself
kills them, and checks at the end that no group was lost or trained on twice. Of a mix one
environment is away for a minute too. Interrupted, the same command continues.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import mix_report

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Lesson:
    """What is learned. `groups` are those of a step, of which each has `members`."""

    agent: str
    config: str
    """Below examples/."""
    tasks: str
    groups: int
    members: int
    steps: int
    num_tests: int
    rate: float
    most_tokens: int
    title: str
    axis: str
    options: tuple[str, ...] = ()
    """Of the script that writes the tasks."""
    is_evaluated: bool = False
    """Whether the collector evaluates on the way, and not this script before and after."""
    is_mix: bool = False
    has_teacher: bool = False
    """Whether a worse copy of the model learns from the model."""


LESSONS = {
    "sums": Lesson(
        agent="math_with_verify_simple_agent",
        config="grpo/grpo.yaml",
        tasks="tasks.py",
        groups=32,
        members=8,
        steps=90,
        num_tests=192,
        rate=1e-3,
        most_tokens=96,
        title="three-digit sums",
        axis="share of sums that are right",
    ),
    "shell": Lesson(
        agent="chooser",
        config="grpo/shell.yaml",
        tasks="shell_tasks.py",
        groups=8,
        members=16,
        steps=40,
        num_tests=64,
        rate=3e-3,
        most_tokens=1,
        title="one of eight commands, through a harness in a shell",
        axis="share of files that are right",
    ),
    "mix": Lesson(
        agent="",
        config="grpo/mix.yaml",
        tasks="mix_tasks.py",
        groups=30,
        members=8,
        steps=90,
        num_tests=192,
        rate=1e-3,
        most_tokens=96,
        title="three environments at once",
        axis="share of tasks that are solved",
        is_evaluated=True,
        is_mix=True,
    ),
}

LESSONS["epochs"] = replace(
    LESSONS["sums"],
    options=("--train=400", "--levels", "1", "2", "3"),
    groups=16,
    steps=60,
    title="400 sums of one to three digits, again and again",
    is_evaluated=True,
)

LESSONS["distillation"] = replace(
    LESSONS["sums"],
    config="distillation/distillation.yaml",
    steps=30,
    title="a worse copy of the model learns three-digit sums from it",
    has_teacher=True,
)

EVAL_EVERY = 10
"""Steps from one evaluation on the way to the next."""

EVERYTHING = "everything"

KILLS = {0.2: "trainer", 0.35: "buffer", 0.5: "servers", 0.7: EVERYTHING, 0.85: "collector"}
"""Share of the steps after which a process is killed."""

AWAY, AWAY_AT, AWAY_S = "environment", 0.12, 60.0
"""The environment of a mix that is killed, after which share of the steps, and for how long."""

AWAY_SERVER = "calculator"

MOST_OFF = 0.03
"""How far the share of an environment may be from its weight after all steps."""

LOOK_S = 0.5


class Kept:
    """A process that is started again until it has ended by itself."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name, self.command = name, list(command)
        self.log = folder / f"{name}.log"
        self.away_until = 0.0
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def keep(self) -> bool:
        """Start it again if it was killed or failed; True once it has ended well."""
        if self.process.poll() is None:
            return False
        if self.process.returncode == 0:
            return True
        if time.monotonic() < self.away_until:
            return False
        print(f"{self.name} ended with status {self.process.returncode}: it starts again")
        time.sleep(1)
        self.process = self._start()
        return False

    def kill(self, away_s: float = 0.0) -> None:
        """Kill it; it does not start again for so long."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.away_until = time.monotonic() + away_s

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lesson", choices=LESSONS, default="sums")
    parser.add_argument("--algorithm", choices=("grpo", "ppo"), default="grpo")
    parser.add_argument("--folder", type=Path, default=Path("results/grpo"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--test", type=int, help="number of tasks to test with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task-policy", default="uniform", help="chooses the tasks of an epoch")
    parser.add_argument("--kill", action="store_true", help="kill every process once")
    args = parser.parse_args()
    lesson = LESSONS[args.lesson]
    args.steps, args.test = args.steps or lesson.steps, args.test or lesson.num_tests
    began = time.monotonic()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if lesson.has_teacher:
        args.algorithm = "distillation"
        make_student(folder, args.seed)
    options = [f"--test={args.test}", f"--seed={args.seed}", *lesson.options]
    run(lesson.tasks, str(folder), *options)
    head, buffer, away = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    with ExitStack() as stack:
        others: list[Kept] = []
        more: list[str] = []
        if lesson.is_mix and args.kill:
            others.append(stack.enter_context(kept(AWAY, serve_environment(away), folder)))
            more.append(f"++{AWAY_SERVER}.resources_servers.{AWAY_SERVER}.placement={away}")
        servers = stack.enter_context(kept("servers", serve(lesson, folder, head, more), folder))
        wait_for(head, servers)
        before = after = 0.0
        if not lesson.is_evaluated:
            before = evaluate(lesson, folder, head, "before")
            print(
                f"before: reward {before:.3f} on {args.test} tasks that it never saw, 4 times each"
            )
        others += [
            stack.enter_context(kept("buffer", serve_buffer(lesson, folder, buffer), folder)),
            stack.enter_context(kept("collector", collect(args, folder, head, buffer), folder)),
        ]
        trainer = stack.enter_context(kept("trainer", train(args, folder, head, buffer), folder))
        follow(trainer, [servers, *others], folder, args)
        if lesson.is_evaluated:
            wait_for_evaluation(args.steps // EVAL_EVERY * EVAL_EVERY, others[-1], folder)
        for one in reversed(others):
            one.stop()
        if not lesson.is_evaluated:
            after = evaluate(lesson, folder, head, "after")
    if lesson.is_evaluated:
        mix_report.show_evaluations(folder)
        if lesson.is_mix:
            mix_report.show_shares(folder)
    else:
        print(f"before {before:.3f}, after {after:.3f}: {describe_gain(folder)}")
    if args.kill:
        check(lesson, folder, is_whole=args.steps >= lesson.steps)
    draw(lesson, args.algorithm, folder, [(0, before), (args.steps, after)])
    run_command("ng_report", f"{folder}/rollouts.jsonl", f"+output_fpath={folder}/report.html")
    print(f"{folder}/curve.png, {folder}/report.html; {time.monotonic() - began:.0f} seconds")


@contextmanager
def kept(name: str, command: Sequence[str], folder: Path) -> Iterator[Kept]:
    """Context in which a process runs."""
    process = Kept(name, command, folder)
    try:
        yield process
    finally:
        process.stop()


def serve(lesson: Lesson, folder: Path, head: str, more: Sequence[str] = ()) -> list[str]:
    model = "policy_model.responses_api_models.local_model"
    student = [f"++{model}.model_path={find_student(folder)}"] if lesson.has_teacher else []
    return [
        command("ng_run"),
        *student,
        *more,
        f"+config_paths=[examples/{lesson.config}]",
        f"++{model}.weight_sync.path={folder}/weights",
        f"+head_server.port={head.rpartition(':')[2]}",
    ]


def serve_environment(url: str) -> list[str]:
    """One environment of the mix at this URL, apart from the other servers."""
    return [
        command("ng_run"),
        "+config_paths=[examples/grpo/environment.yaml]",
        f"++{AWAY_SERVER}.resources_servers.{AWAY_SERVER}.port={url.rpartition(':')[2]}",
        f"+head_server.port={free_port()}",
    ]


def collect(args: argparse.Namespace, folder: Path, head: str, buffer: str) -> list[str]:
    lesson = LESSONS[args.lesson]
    tasks = [f"+agent_name={lesson.agent}", f"+input_jsonl_fpath={folder / 'train.jsonl'}"]
    if lesson.is_mix:
        tasks = [f"+mix={folder}/mix.yaml"]
    if lesson.is_evaluated:
        tasks += [f"+eval={folder}/eval.yaml", f"+eval_every={EVAL_EVERY}"]
    if args.task_policy != "uniform":
        tasks.append(f"+task_policy={args.task_policy}")
    if lesson.has_teacher:
        tasks.append("+teacher=teacher_model")
    return [
        command("ng_collect_rollouts"),
        *tasks,
        *build_words(lesson, folder / "rollouts.jsonl", head),
        f"+num_repeats={lesson.members}",
        "+epochs=null",
        f"+buffer={buffer}",
    ]


def serve_buffer(lesson: Lesson, folder: Path, url: str) -> list[str]:
    port = url.rpartition(":")[2]
    return [
        *script("serve_buffer.py"),
        str(folder / "spool.jsonl"),
        f"--port={port}",
        f"--batch={lesson.groups}",
    ]


def train(args: argparse.Namespace, folder: Path, head: str, buffer: str) -> list[str]:
    own = [f"--folder={folder}", f"--steps={args.steps}", f"--seed={args.seed}"]
    own.append(f"--rate={LESSONS[args.lesson].rate}")
    if LESSONS[args.lesson].has_teacher:
        own.append(f"--base={find_student(folder)}")
    return [*script("train.py", args.algorithm), f"--buffer={buffer}", f"--head={head}", *own]


def make_student(folder: Path, seed: int) -> None:
    if not find_student(folder).is_dir():
        words = [str(folder / "student"), f"--seed={seed}"]
        subprocess.run([*script("make_student.py", "distillation"), *words], cwd=ROOT, check=True)


def find_student(folder: Path) -> Path:
    return folder / "student/step_0"


def build_words(lesson: Lesson, output: Path, head: str) -> list[str]:
    """What every collection of this example is asked."""
    return [
        f"+output_jsonl_fpath={output}",
        f"+head_server.port={head.rpartition(':')[2]}",
        "+responses_create_params.temperature=1",
        f"+responses_create_params.max_output_tokens={lesson.most_tokens}",
        "+num_samples_in_parallel=16",
    ]


def evaluate(lesson: Lesson, folder: Path, head: str, name: str) -> float:
    """The mean reward of the present weights on the test tasks, each made four times."""
    output = folder / f"{name}.jsonl"
    asked = [f"+agent_name={lesson.agent}", f"+input_jsonl_fpath={folder / 'test.jsonl'}"]
    asked += build_words(lesson, output, head)
    run_command("ng_collect_rollouts", *asked, "+num_repeats=4")
    metrics = json.loads((folder / f"{name}_aggregate_metrics.json").read_text())
    return float(metrics["reward"])


def describe_gain(folder: Path) -> str:
    """The difference of the two evaluations, task by task, with its 95 % interval."""
    said = run_command(
        "ng_compare", f"{folder}/before.jsonl", f"{folder}/after.jsonl", "+json=true"
    )
    [pair] = json.loads(said)["pairs"]
    low, high = pair["interval"]
    between = f"95 % interval [{low:+.3f}, {high:+.3f}]"
    return f"{pair['difference']:+.3f}, {between} over {pair['num_tasks']} tasks"


def follow(trainer: Kept, others: Sequence[Kept], folder: Path, args: argparse.Namespace) -> None:
    """Show what the trainer prints until it has ended; keep all processes alive."""
    kills = list_kills(args)
    known, shown = {each.name: each for each in (trainer, *others)}, 0
    while True:
        is_done = trainer.keep()
        for each in others:
            if each.keep():
                sys.exit(f"{each.name} has ended: see {each.log}")
        lines = trainer.log.read_text("utf-8", "replace").splitlines()
        for line in lines[shown:]:
            if line.startswith(("step", "continuing")):
                print(line, flush=True)
            found = re.match(r"step +(\d+) ", line)
            if found and (name := kills.pop(int(found[1]), "")):
                print(f"killing {name if name == EVERYTHING else f'the {name}'}", flush=True)
                for one in [known[name]] if name in known else known.values():
                    one.kill(AWAY_S if name == AWAY else 0.0)
        shown = len(lines)
        if is_done:
            return
        time.sleep(LOOK_S)


def list_kills(args: argparse.Namespace) -> dict[int, str]:
    """Step → what is killed after it."""
    if not args.kill:
        return {}
    more = {AWAY_AT: AWAY} if LESSONS[args.lesson].is_mix else {}
    return {max(1, round(share * args.steps)): name for share, name in {**more, **KILLS}.items()}


def check(lesson: Lesson, folder: Path, *, is_whole: bool) -> None:
    """End with an error if a group was lost, or trained on twice; of a mix also if a share is off
    after all steps, or if nothing noticed that an environment was away."""
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    numbers = [each["step"] for each in steps]
    keys = [key for each in steps for key in each["trained"]]
    assert numbers == list(range(1, len(numbers) + 1)), f"steps {numbers}"
    assert len(keys) == len(set(keys)), "a group was trained on twice"
    assert all(len(each["trained"]) == lesson.groups for each in steps), "a step lacks groups"
    print(f"killed and continued: {len(steps)} steps, {len(keys):,} groups, each of them once")
    if lesson.is_mix:
        said = (folder / "collector.log").read_text("utf-8", "replace")
        outages = re.findall(r"^.*?(\w+ is (?:down|back).*)$", said, re.MULTILINE)
        print(*outages, sep="\n")
        assert any("is down" in line for line in outages), "no environment was away"
        if is_whole:
            off = mix_report.measure_distance(folder)
            assert off <= MOST_OFF, f"a share is {off:.1%} from its weight"


def wait_for_evaluation(version: int, collector: Kept, folder: Path) -> None:
    """Wait until the last version is evaluated, or the collector has ended."""
    while collector.process.poll() is None:
        lines = mix_report.read_evaluations(folder)
        sets = {each["set"] for each in lines}
        if {each["set"] for each in lines if each["version"] == version} >= sets > set():
            return
        time.sleep(LOOK_S)


def draw(lesson: Lesson, algorithm: str, folder: Path, tests: Sequence[tuple[int, float]]) -> None:
    """The curve of the rewards, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    rewards = [each["reward/mean"] for each in steps]
    smooth = [sum(rewards[max(0, at - 9) : at + 1]) / min(10, at + 1) for at in range(len(rewards))]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot(range(1, len(rewards) + 1), rewards, color="#b9cdef", label="each training step")
    axes.plot(range(1, len(rewards) + 1), smooth, color="#2456a6", label="mean of 10 steps")
    if lesson.is_evaluated:
        mix_report.draw_evaluations(axes, folder)
        tests = []
    else:
        xs, ys = zip(*tests, strict=True)
        axes.plot(xs, ys, "o", color="#c8502e", label="tasks that were never seen")
    for x, y in tests:
        axes.annotate(
            f"{y:.2f}",
            (x, y),
            xytext=(0, 9 if y < 0.1 else -18),
            textcoords="offset points",
            ha="center",
        )
    axes.set(xlabel="training step", ylabel=f"mean reward: {lesson.axis}")
    axes.set(ylim=(0, 1), title=f"{algorithm.upper()}: {lesson.title}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(folder / "curve.png", dpi=120)


def wait_for(head: str, servers: Kept) -> None:
    """Wait until all servers are ready."""
    while servers.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{head}/", timeout=5) as reply:
                if json.load(reply)["status"] == "ok":
                    return
        except OSError:
            pass  # it is not there yet
        time.sleep(LOOK_S)
    sys.exit(f"{servers.name} has ended: see {servers.log}")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def script(name: str, example: str = "grpo") -> list[str]:
    return [sys.executable, str(ROOT / "examples" / example / name)]


def command(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).with_name(name))


def run(name: str, *words: str) -> None:
    subprocess.run([*script(name), *words], cwd=ROOT, check=True)


def run_command(name: str, *words: str) -> str:
    """Run a command to its end, and return its output, which is shown if it fails."""
    done = subprocess.run([command(name), *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
