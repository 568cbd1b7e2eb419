"""Weights & Biases, in a worker process of `link`; imports nothing of this package.

Each call says all that the process needs to go on with the run, because it may have been replaced.
"""

import os
import re
from typing import Any

STEP = "rollouts/finished"
"""The step of all figures: W&B's own counts calls."""

PRIVATE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 2.0,
}
"""Settings with which the SDK sends what it is given, and no command line, code or output. What it
keeps on disk is at most two seconds old when it is killed."""

INIT_S = 20.0
"""Time to reach the server; after it the run is kept on disk."""


class WandbRun:
    """The process's one run."""

    def __init__(self) -> None:
        self._run: Any = None
        self._notes: list[str] = []

    def act(self, settings: dict[str, Any], state: dict[str, Any], what: str, sent: Any) -> Any:
        """Do one thing; returns the state for the next call, and what people should read."""
        self._notes = []
        self._run = self._run or self._open(settings, state)
        getattr(self, f"_{what}")(sent)
        mode = "offline" if self._run.offline else settings["init"].get("mode")
        return {"state": {"id": self._run.id, "mode": mode}, "notes": self._notes}

    def _open(self, settings: dict[str, Any], state: dict[str, Any]) -> Any:
        """The run; where the server is not reached or refuses it, the run is kept on disk."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # errors are returned, and nothing is shown
        import wandb  # type: ignore[import-not-found]

        given = {**settings["init"], "config": settings["config"]}
        if state:
            given |= {**state, "resume": "allow"}
        private = wandb.Settings(**PRIVATE, init_timeout=INIT_S)
        try:
            run = wandb.init(**given, settings=private)
        except Exception as error:
            if given.get("mode") == "offline":
                raise
            run = wandb.init(**{**given, "mode": "offline"}, settings=private)
            reason = str(error).strip().partition("\n")[0]
            self._notes.append(f"warning: W&B: {reason}; the run is kept on disk instead")
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        if not state:
            kept = os.path.dirname(run.dir)
            offline = f"{kept}; this sends it:  wandb sync {kept}"
            self._notes.append(f"W&B: {offline if run.offline else run.url}")
        return run

    def _log(self, sent: dict[str, Any]) -> None:
        self._run.log({STEP: sent["step"], **sent["figures"]})

    def _table(self, sent: dict[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        table = wandb.Table(columns=sent["columns"], data=sent["rows"], allow_mixed_types=True)
        self._run.log({STEP: sent["step"], "samples/rollouts": table})

    def _files(self, sent: dict[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        name = re.sub(r"[^\w.-]", "_", sent["name"])[:128]
        artifact = wandb.Artifact(name, type="rollouts")
        for path in sent["paths"]:
            # a copy, where the file may have grown when it is sent
            artifact.add_file(path, policy="mutable" if self._run.offline else "immutable")
        self._run.log_artifact(artifact)

    def _end(self, sent: dict[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        self._run.finish(exit_code=0 if sent["is_finished"] else 1)
        wandb.teardown()


act = WandbRun().act
