"""Parse TOML, YAML and XML in time that is proportional to the text; runs in a worker process.

Their parsers need quadratic time, or memory, for a few kinds of text. Such a text is refused before
it reaches the parser: it is excessive nesting, repetition or length, and no answer needs it.
"""

import re
import tomllib
from types import SimpleNamespace
from typing import Any
from xml.parsers import expat

import xmltodict
import yaml

DEPTH_LIMIT = 100
"""Maximum depth of YAML; its C parser is recursive and could overflow the stack."""

NODE_LIMIT = 1_000_000
"""Maximum size of YAML with expanded aliases; ten lines of aliases can expand to 10^9 nodes."""

MERGE_LIMIT = 100_000
"""Maximum number of entries that `<<` merges into mappings of YAML; each mapping has its copy."""

SEXAGESIMAL_LIMIT = 2_400
"""Maximum number of digits in an integer of YAML such as `1:30:00`. Python converts no decimal
integer of more than 4,300 digits, which are as many."""

MERGE = "tag:yaml.org,2002:merge"

TAG_LIMIT = 100
"""Maximum number of `%TAG` lines; libyaml compares each with all others."""

KEY_LIMIT = 30
"""Maximum number of parts of a dotted key of TOML; tomllib copies all parts before each one."""

TEXT_OF_TOML = re.compile(
    r'"""(?:[^"\\]|\\.?|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+",
    re.DOTALL,
)
"""A string or a comment."""

LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{KEY_LIMIT}}}")

TAG = re.compile(r"^%TAG\b", re.MULTILINE)


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Values of safe types; it counts the pairs of merged mappings, and refuses a key that a
    mapping has twice."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.num_merged = 0
        self._flat: set[Any] = set()

    def flatten_mapping(self, node: Any) -> None:
        if node not in self._flat:  # later it also has the merged keys
            self._flat.add(node)
            _check_keys(node)
        for key, value in list(node.value):
            if key.tag == MERGE:
                merged = [value] if isinstance(value, yaml.MappingNode) else value.value
                for each in merged:
                    if isinstance(each, yaml.MappingNode):
                        self.flatten_mapping(each)
                        self.num_merged += len(each.value)
                    if self.num_merged > MERGE_LIMIT:
                        raise ValueError(f"more than {MERGE_LIMIT:,} entries are merged with <<")
        super().flatten_mapping(node)

    def construct_yaml_int(self, node: Any) -> Any:
        if self.construct_scalar(node).count(":") > SEXAGESIMAL_LIMIT:
            raise ValueError(f"an integer has more than {SEXAGESIMAL_LIMIT:,} digits in base 60")
        return super().construct_yaml_int(node)


def _check_keys(node: Any) -> None:
    keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE]
    if len({(key.tag, key.value) for key in keys}) < len(keys):
        raise ValueError("a mapping has a key twice")


YamlLoader.add_constructor("tag:yaml.org,2002:int", YamlLoader.construct_yaml_int)


def load_yaml(text: str) -> Any:
    if len(TAG.findall(text)) > TAG_LIMIT:
        raise ValueError(f"it has more than {TAG_LIMIT} %TAG lines")
    depth = 0
    for event in yaml.parse(text, Loader=YamlLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise ValueError(f"nested more than {DEPTH_LIMIT} levels deep")
    found = yaml.load(text, Loader=YamlLoader)
    if _count_nodes(found, {}) >= NODE_LIMIT:
        raise ValueError(f"its aliases expand to more than {NODE_LIMIT:,} nodes, or are recursive")
    return found


def _count_nodes(value: Any, known: dict[int, int]) -> int:
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = NODE_LIMIT  # a value that contains itself is infinite
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count_nodes(part, known) for part in parts)
    return known[id(value)]


def load_toml(text: str) -> Any:
    if LONG_KEY.search(TEXT_OF_TOML.sub("s", text)):
        raise ValueError(f"a key has more than {KEY_LIMIT} parts")
    return tomllib.loads(text)


def load_xml(text: str) -> Any:
    """Refuse entities and default attributes: each element may repeat a long text."""
    parser = SimpleNamespace(ParserCreate=_make_parser)
    return xmltodict.parse(text, expat=parser, disable_entities=True)


def _make_parser(*arguments: Any) -> Any:
    parser = expat.ParserCreate(*arguments)
    parser.AttlistDeclHandler = _refuse_attributes
    return parser


def _refuse_attributes(*declaration: Any) -> None:
    raise ValueError("declarations of attributes are disabled")
