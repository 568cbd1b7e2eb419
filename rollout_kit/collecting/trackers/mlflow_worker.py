"""MLflow, in a worker process of `link`; imports nothing of this package.

It uses `MlflowClient` with the id of the run, never the current run of a thread.
"""

import json
import os
import re
import time
from typing import Any

DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # `link` tries again itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Of variables that a user may set."""

MAX_NAME = 250

MAX_VALUE = 500
"""Characters of a parameter that older servers accept."""

MAX_PARAMS = 100
"""Parameters of one request."""

TABLE = "rollouts.json"


class MlflowRun:
    """The process's one run."""

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""

    def act(self, settings: dict[str, Any], state: dict[str, Any], what: str, sent: Any) -> Any:
        """Do one thing; returns the state for the next call, and what people should read."""
        if self._client is None:
            self._client = self._connect(settings)
        notes: list[str] = []
        self._run_id = state.get("run_id", self._run_id)
        if not self._run_id:
            notes = [self._open(settings)]
        getattr(self, f"_{what}")(sent)
        return {"state": {"run_id": self._run_id}, "notes": notes}

    def _connect(self, settings: dict[str, Any]) -> Any:
        os.environ.update({**DEFAULTS, **os.environ})
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # errors are returned, and nothing is shown
        from mlflow import MlflowClient  # type: ignore[import-not-found]

        return MlflowClient(tracking_uri=settings["tracking_uri"])

    def _open(self, settings: dict[str, Any]) -> str:
        client, name = self._client, settings["experiment"]
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        named = {"run_name": settings["run_name"]} if settings["run_name"] else {}
        run = client.create_run(experiment, tags=settings["tags"], **named)
        self._run_id = run.info.run_id
        self._note_config(settings["config"])
        return f"MLflow: run {run.info.run_name} ({self._run_id}) of the experiment {name}"

    def _note_config(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param  # type: ignore[import-not-found]

        params = [Param(legal(key), value[:MAX_VALUE]) for key, value in flatten(config)]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])

    def _log(self, sent: dict[str, Any]) -> None:
        from mlflow.entities import Metric  # type: ignore[import-not-found]

        now, step = int(time.time() * 1000), sent["step"]
        figures = {legal(name): value for name, value in sent["figures"].items()}
        metrics = [Metric(name, float(value), now, step) for name, value in figures.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _table(self, sent: dict[str, Any]) -> None:
        # as log_table writes it, which needs pandas
        table = {"columns": sent["columns"], "data": sent["rows"]}
        self._client.log_text(self._run_id, json.dumps(table), TABLE)
        listed = [{"path": TABLE, "type": "table"}]
        self._client.set_tag(self._run_id, "mlflow.loggedArtifacts", json.dumps(listed))

    def _files(self, sent: dict[str, Any]) -> None:
        for path in sent["paths"]:
            self._client.log_artifact(self._run_id, path, sent["name"])

    def _end(self, sent: dict[str, Any]) -> None:
        status = "FINISHED" if sent["is_finished"] else "KILLED"
        self._client.set_terminated(self._run_id, status)


def legal(name: str) -> str:
    """The name of a metric or parameter that every server accepts: one bad name rejects all."""
    name = re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"), flags=re.ASCII)
    parts = [part if part.strip(". ") else "_" for part in name.split("/")]
    return "/".join(parts)[:MAX_NAME]


def flatten(tree: Any, path: str = "") -> list[tuple[str, str]]:
    """`a.b` and the value as text, of every leaf of mappings."""
    if isinstance(tree, dict):
        return [
            each
            for key, value in tree.items()
            for each in flatten(value, f"{path}.{key}".lstrip("."))
        ]
    return [(path, tree if isinstance(tree, str) else json.dumps(tree))]


act = MlflowRun().act
