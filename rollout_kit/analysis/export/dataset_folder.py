"""A dataset folder as the Hugging Face Hub has it: rows, a session for each rollout, and a card.

The whole folder is written beside its place and put there in the end. The sessions are what the
Hub's trace viewer shows: https://huggingface.co/docs/hub/session-traces-format.
"""

import shutil
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import yaml

from ..._version import __version__
from ...errors import OutputError
from ...store.files import draft_of
from ...types import JsonObject
from .row_files import RowFile

CARD, DATA, SESSIONS = "README.md", "data", "sessions"
"""What is in the folder."""

SESSIONS_OF_A_FOLDER = 1000
"""The Hub takes at most 10,000 files in a folder."""

LONGEST_NAME = 80
"""Characters of a session's name, which is the beginning of its question."""

_CALL = [
    {"name": "id", "dtype": "string"},
    {"name": "type", "dtype": "string"},
    {
        "name": "function",
        "struct": [{"name": "name", "dtype": "string"}, {"name": "arguments", "dtype": "string"}],
    },
]

_PART = [{"name": name, "dtype": "string"} for name in ("type", "text", "image_url")]

_MESSAGE = [
    *({"name": name, "dtype": "string"} for name in ("role", "content", "reasoning_content")),
    {"name": "parts", "list": _PART},
    {"name": "tool_calls", "list": _CALL},
    {"name": "tool_call_id", "dtype": "string"},
]

FEATURES: list[JsonObject] = [
    {"name": "messages", "list": _MESSAGE},
    *({"name": name, "dtype": "string"} for name in ("tools", "agent", "model", "finish_reason")),
    *({"name": name, "dtype": "int64"} for name in ("num_turns", "num_tool_calls")),
    *({"name": name, "dtype": "int64"} for name in ("input_tokens", "output_tokens")),
    *({"name": name, "dtype": "float64"} for name in ("cost_usd", "duration_s")),
    *({"name": name, "dtype": "string"} for name in ("scope", "scores", "row")),
    {"name": "reward", "dtype": "float64"},
    {"name": "task_id", "dtype": "string"},
    {"name": "rollout_index", "dtype": "int64"},
]
"""The columns of a row, as a card describes them."""

ADVANTAGE = {"name": "advantage", "dtype": "float64"}
"""A column of exports with `+advantage=`."""

OF_MESSAGE = tuple(each["name"] for each in _MESSAGE)


class DatasetFolder:
    """`complete` and `commit` it in the end, or `discard` it. All of it is JSON lines: the loader
    takes one kind of file for a dataset, and the Hub makes Parquet of them itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.draft = draft_of(path)

    def open_split(self, name: str) -> "DatasetSplit":
        return DatasetSplit(self, name)

    def complete(self, splits: Sequence[RowFile]) -> str | None:
        """Write the card, and return its digest; OutputError if there is no room for it."""
        try:
            (self.draft / CARD).write_text(write_card(self.path, splits), "utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from None
        return read_card(self.draft)

    def commit(self) -> None:
        """Put the folder in its place, instead of an earlier one."""
        earlier = self.draft.with_suffix(".old")
        try:
            if self.path.exists():
                self.path.replace(earlier)
            self.draft.replace(self.path)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from None
        shutil.rmtree(earlier, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was written, if it was not committed."""
        shutil.rmtree(self.draft, ignore_errors=True)


class DatasetSplit(RowFile):
    """The rows of a split, and their sessions. They come into place with their folder."""

    def __init__(self, folder: DatasetFolder, name: str) -> None:
        self.name = name
        inner = Path(DATA) / f"{name}.jsonl"
        self._sessions = folder.draft / SESSIONS / name
        super().__init__(folder.path / inner, is_parquet=False, draft=folder.draft / inner)

    def write(self, row: JsonObject) -> None:
        super().write(row)
        number = self.num_rows - 1
        place = self._sessions / f"{number // SESSIONS_OF_A_FOLDER:04}" / f"{number:07}.jsonl"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lines = (orjson.dumps(each) + b"\n" for each in build_session(row))
            place.write_bytes(b"".join(lines))
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror}") from None

    def commit(self) -> None:
        """The folder does it."""


def read_card(folder: Path) -> str | None:
    """The digest of a dataset's card; None if it has none, or files that no export writes."""
    if {each.name for each in folder.iterdir()} - {CARD, DATA, SESSIONS}:
        return None
    try:
        return blake2b((folder / CARD).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return None


def fill_message(message: JsonObject) -> JsonObject:
    """A message with all columns, so that each row has the features of the card."""
    return {name: message.get(name) for name in OF_MESSAGE}


def build_session(row: JsonObject) -> Iterator[JsonObject]:
    """The lines of a rollout's session: a header, then a line for each message."""
    names = ("agent", "task_id", "scope", "rollout_index")
    asked = next((each["content"] for each in row["messages"] if each["role"] == "user"), None)
    yield {
        "type": "session",
        "harness": "rollout_kit",
        "id": ":".join(str(row[name]) for name in names if row[name] != ""),
        "name": (asked or row["task_id"]).strip()[:LONGEST_NAME],
        **{name: row[name] for name in ("agent", "model", "reward", "finish_reason")},
        "tools": orjson.loads(row["tools"] or b"[]"),
    }
    for message in row["messages"]:
        yield {"type": "message", "message": _as_said(message, row["model"])}


def _as_said(message: JsonObject, model: Any) -> JsonObject:
    """A message in the names of the trace viewer."""
    role = {"developer": "system"}.get(message["role"], message["role"])
    found: JsonObject = {"role": role, "content": message["content"]}
    if thought := message["reasoning_content"]:
        found["reasoningContent"] = thought
    if calls := message["tool_calls"]:
        found["toolCalls"] = [{"id": each["id"], "function": each["function"]} for each in calls]
    if id := message["tool_call_id"]:
        found["toolCallId"] = id
    if role == "assistant" and model:
        found["model"] = model
    return found


def write_card(path: Path, splits: Sequence[RowFile]) -> str:
    """The card: which files are which split, and what is in a row. The licence is the user's."""
    files = {each.path.stem: each for each in splits}
    rows = sum(each.num_rows for each in splits)
    features = [*FEATURES, ADVANTAGE] if ADVANTAGE["name"] in splits[0].columns else FEATURES
    front = {
        "pretty_name": path.name,
        "tags": ["agent-traces", "format:agent-traces", "rollouts"],
        "configs": [
            _config("default", {name: f"{DATA}/{each.path.name}" for name, each in files.items()}),
            _config("sessions", {name: f"{SESSIONS}/{name}/**/*.jsonl" for name in files}),
        ],
        "dataset_info": [{"config_name": "default", "features": features}],
    }
    text = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---\n{ABOUT.format(name=path.name, rows=rows, version=__version__)}"


def _config(name: str, files: dict[str, str]) -> JsonObject:
    places = [{"split": split, "path": place} for split, place in files.items()]
    return {"config_name": name, "data_files": places}


ABOUT = """
# {name}

{rows:,} rollouts of language models, collected with rollout_kit {version}.

- `default` has a row for each rollout: `messages`, `tools` (definitions as JSON text), `reward`,
  `scores` (JSON text), `row` (the task's other fields as JSON text), tokens, times and costs. A
  message with images has them in `parts`, between its texts.
- `sessions` has a file for each rollout, which the trace viewer shows.

Before you publish this dataset, name its licence in the first lines of this file, and look for
secrets and personal data in it.
"""
