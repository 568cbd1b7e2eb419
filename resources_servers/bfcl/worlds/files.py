"""A file system in memory."""

from collections.abc import Iterator
from typing import Any

from .world import World

MAX_ITEMS = 100_000
"""Most items that one call goes through. Copies share their contents, so a few calls can make a
tree of any size."""

NO_NAME = {*'|/\\?%*:"><'}
"""Characters that no name may have."""

Reply = dict[str, Any] | None


class Node:
    """A directory, or a file if `contents` is None."""

    def __init__(self, name: str, parent: "Node | None" = None, text: str | None = None) -> None:
        self.name, self.parent, self.text = name, parent, text or ""
        self.contents: dict[str, Node] | None = {} if text is None else None

    def __eq__(self, other: object) -> bool:
        """Compare name, text and contents."""
        if not isinstance(other, Node):
            return False
        mine, theirs = ((node.name, node.text, node.contents) for node in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_file(self) -> bool:
        return self.contents is None

    def _add(self, node: "Node") -> None:
        assert self.contents is not None
        if node.name in self.contents:
            kind = "File" if node.is_file else "Directory"
            raise ValueError(f"{kind} '{node.name}' already exists in directory '{self.name}'.")
        node.parent = self
        self.contents[node.name] = node


class GorillaFileSystem(World):
    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__({}, long)
        self.root = Node("/")
        if scenario.get("root"):
            name, tree = next(iter(scenario["root"].items()))
            self.root = Node(name)
            self._load(self.root, tree["contents"])
        self._here = self.root

    def _load(self, into: Node, tree: dict[str, Any]) -> None:
        has_folder = False
        for name, entry in tree.items():
            if entry["type"] == "directory":
                has_folder, folder = True, Node(name)
                into._add(folder)
                self._load(folder, entry["contents"])
            else:
                text = entry["content"]
                if self._long is not None and name not in self._long["files_tail_used"]:
                    text += self._long["file_content"]
                into._add(Node(name, text=text))
        if not has_folder and self._long is not None:
            for name in self._long["populate_file"]:
                into._add(Node(name, text=""))

    @property
    def _items(self) -> dict[str, Node]:
        assert self._here.contents is not None
        return self._here.contents

    def _file(self, name: str) -> Node | None:
        node = self._items.get(name)
        return node if node is not None and node.is_file else None

    def _walk(self, folder: Node, path: str) -> Iterator[tuple[str, Node]]:
        """All items below a directory with their paths."""
        left, depth = [iter((folder.contents or {}).items())], [path]
        for _ in range(MAX_ITEMS):
            while left and (found := next(left[-1], None)) is None:
                left.pop()
                depth.pop()
            if not left:
                return
            name, node = found
            yield f"{depth[-1]}/{name}", node
            if not node.is_file:
                left.append(iter((node.contents or {}).items()))
                depth.append(f"{depth[-1]}/{name}")
        raise RecursionError("maximum recursion depth exceeded")

    def _find_folder(self, path: str | None) -> Node | dict[str, str]:
        if path is None or path == ".":
            return self._here
        if path == "/":
            return self.root
        node = self.root if path.startswith("/") else self._here
        for name in path.strip("/").split("/"):
            below = node if name == "." else (node.contents or {}).get(name)
            if below is None or below.is_file:
                return {"error": f"cd: '{path}': No such file or directory"}
            node = below
        return node

    def pwd(self) -> Reply:
        names, node = [], self._here
        while node is not None:
            names.append(node.name)
            node = node.parent
        return {"current_working_directory": "/" + "/".join(reversed(names))}

    def ls(self, a: bool = False) -> Reply:
        names = [name for name in self._items if a or not name.startswith(".")]
        return {"current_directory_content": names}

    def cd(self, folder: str) -> Reply:
        folder = folder.rstrip("/") or "/"
        if folder not in {".", "..", "/"} and "/" in folder:
            return {
                "error": f"cd: {folder}: Unsupported path. Only one folder level at a time is"
                " supported."
            }
        if folder == "..":
            if self._here.parent is None:
                return {"error": "Current directory is already the root. Cannot go back."}
            self._here = self._here.parent
            return {}
        found = self._find_folder(folder)
        if isinstance(found, dict):
            return found
        self._here = found
        return {"current_working_directory": found.name}

    def mkdir(self, dir_name: str) -> Reply:
        return self._make("mkdir: cannot create directory", Node(dir_name))

    def touch(self, file_name: str) -> Reply:
        return self._make("touch: cannot touch", Node(file_name, text=""))

    def _make(self, what: str, node: Node) -> Reply:
        if NO_NAME & {*node.name}:
            return {"error": f"{what} '{node.name}': Invalid character"}
        if node.name in self._items:
            return {"error": f"{what} '{node.name}': File exists"}
        self._here._add(node)
        return None

    def echo(self, content: str, file_name: str | None = None) -> Reply:
        if not file_name:
            return {"terminal_output": content}
        if NO_NAME & {*file_name}:
            return {"error": f"echo: cannot write to '{file_name}': Invalid character"}
        if file_name not in self._items:
            return {"error": f"echo: cannot write to '{file_name}': No such file"}
        node = self._items[file_name]
        if not node.is_file:
            raise AttributeError("'Directory' object has no attribute '_write'")
        node.text = content
        return None

    def cat(self, file_name: str) -> Reply:
        if NO_NAME & {*file_name}:
            return {"error": f"cat: '{file_name}': Invalid character"}
        node = self._items.get(file_name)
        if node is None:
            return {"error": f"cat: '{file_name}': No such file or directory"}
        if not node.is_file:
            return {"error": f"cat: '{file_name}': Is a directory"}
        return {"file_content": node.text}

    def find(self, path: str = ".", name: str | None = None) -> Reply:
        found = self._find_folder(path)
        if isinstance(found, dict):
            return {"error": found["error"].replace("cd:", "find:", 1)}
        below = self._walk(found, path.rstrip("/"))
        return {"matches": [at for at, node in below if name is None or name in node.name]}

    def wc(self, file_name: str, mode: str = "l") -> Reply:
        kinds = {"l": "lines", "w": "words", "c": "characters"}
        if mode not in kinds:
            return {"error": f"wc: invalid mode '{mode}'"}
        if (node := self._file(file_name)) is None:
            return {"error": f"wc: {file_name}: No such file or directory"}
        parts = {"l": node.text.splitlines(), "w": node.text.split(), "c": node.text}
        return {"count": len(parts[mode]), "type": kinds[mode]}

    def sort(self, file_name: str) -> Reply:
        if (node := self._file(file_name)) is None:
            return {"error": f"sort: {file_name}: No such file or directory"}
        return {"sorted_content": "\n".join(sorted(node.text.splitlines()))}

    def grep(self, file_name: str, pattern: str) -> Reply:
        if (node := self._file(file_name)) is None:
            return {"error": f"grep: {file_name}: No such file or directory"}
        return {"matching_lines": [line for line in node.text.splitlines() if pattern in line]}

    def du(self, human_readable: bool = False) -> Reply:
        below = (node for _, node in self._walk(self._here, "") if node.is_file)
        size: float = sum(len(node.text.encode()) for node in below)
        if not human_readable:
            return {"disk_usage": f"{size} bytes"}
        for unit in ("B", "KB", "MB", "GB", "TB"):
            if size < 1024:
                return {"disk_usage": f"{size:.2f} {unit}"}
            size /= 1024
        return {"disk_usage": f"{size:.2f} PB"}

    def tail(self, file_name: str, lines: int = 10) -> Reply:
        if (node := self._file(file_name)) is None:
            return {"error": f"tail: {file_name}: No such file or directory"}
        found = node.text.splitlines()
        return {"last_lines": "\n".join(found[-min(lines, len(found)) :])}

    def diff(self, file_name1: str, file_name2: str) -> Reply:
        first, second = self._file(file_name1), self._file(file_name2)
        if first is None or second is None:
            return {"error": f"diff: {file_name1} or {file_name2}: No such file or directory"}
        pairs = zip(first.text.splitlines(), second.text.splitlines(), strict=False)
        changed = [f"- {one}\n+ {other}" for one, other in pairs if one != other]
        return {"diff_lines": "\n".join(changed)}

    def mv(self, source: str, destination: str) -> Reply:
        return self._put("mv", "move", "moved", source, destination)

    def cp(self, source: str, destination: str) -> Reply:
        return self._put("cp", "copy", "copied", source, destination)

    def _put(self, tool: str, verb: str, done: str, source: str, destination: str) -> Reply:
        """Move or copy an item; a directory that is copied shares what is below it."""
        node = self._items.get(source)
        if node is None:
            return {"error": f"{tool}: cannot {verb} '{source}': No such file or directory"}
        if "/" in destination:
            return {
                "error": f"{tool}: path not allowed in destination. Provide only a file or"
                " directory name."
            }
        into, name, at = self._here, destination, destination
        if (there := self._items.get(destination)) is not None:
            if there.is_file:
                return {
                    "error": f"{tool}: cannot {verb} '{source}' to '{destination}': Not a directory"
                }
            into, name, at = there, source, f"{destination}/{source}"
            if tool == "mv" and source in (there.contents or {}):
                return {"error": f"{tool}: cannot {verb} '{source}' to '{at}': File exists"}
        if tool == "mv":
            self._items.pop(source)
        copy = Node(name, text=node.text if node.is_file else None)
        into._add(copy)
        if node.contents is not None:
            copy.contents = node.contents if tool == "mv" else node.contents.copy()
        return {"result": f"'{source}' {done} to '{at}'"}

    def rm(self, file_name: str) -> Reply:
        if file_name not in self._items:
            return {"error": f"rm: cannot remove '{file_name}': No such file or directory"}
        self._items.pop(file_name)
        return {"result": f"'{file_name}' removed"}

    def rmdir(self, dir_name: str) -> Reply:
        node, what = self._items.get(dir_name), f"rmdir: cannot remove '{dir_name}'"
        if node is None:
            return {"error": f"{what}: No such file or directory"}
        if node.is_file:
            return {"error": f"{what}: Not a directory"}
        if node.contents:
            return {"error": f"{what}: Directory not empty"}
        self._items.pop(dir_name)
        return {"result": f"'{dir_name}' removed"}
