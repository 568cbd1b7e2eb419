"""Convert the texts of XML and CSV to the types that a schema asks for; runs in a worker process.

A text stays as it is if the schema permits it, or if no type of the schema fits.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

INTEGER = re.compile(r"[+-]?[0-9]+")

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

TRUTH = {"true": True, "1": True, "false": False, "0": False}

TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
    type(None): "null",
}


class Csv(NamedTuple):
    header: list[str]
    rows: list[dict[str, Any]]


class Converter:
    """Follows a schema through references and alternatives; chooses what the validator accepts."""

    def __init__(self, validator: Any, *, is_xml: bool) -> None:
        schema = validator.schema
        root = Resource.from_contents(
            schema if isinstance(schema, dict) else {}, default_specification=DRAFT202012
        )
        self._validator = validator
        self._resolver = Registry().resolver_with_root(root)
        self._is_xml = is_xml

    def convert(self, found: Any, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return found
        for part in self._list_parts(schema):
            found = self.convert(found, part)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                found = self._choose(
                    found, ((self.convert(found, each), each) for each in schema[keyword])
                )
        types = _list_types(schema)
        if len(types) == 1:
            return self._convert_to(found, types[0], schema)
        return self._choose(
            found, ((self._convert_to(found, each, schema), schema) for each in types)
        )

    def convert_table(self, table: Csv, schema: Any) -> list[dict[str, Any]]:
        """Convert cells. Raise ValueError for a header with other columns, because the schema
        itself accepts any header if no row follows."""
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._look_up(schema)
        schema = schema.get("items", schema)
        properties = self._collect_properties(schema)
        if properties and sorted(table.header) != sorted(properties):
            names = ", ".join(properties)
            raise ValueError(f"the columns are {', '.join(table.header)}, not {names}")
        return [self.convert(row, schema) for row in table.rows]

    def _list_parts(self, schema: Any) -> list[Any]:
        """Schemas that must hold as well."""
        parts = list(schema.get("allOf", ()))
        return [self._look_up(schema), *parts] if "$ref" in schema else parts

    def _look_up(self, schema: Any) -> Any:
        return self._resolver.lookup(schema["$ref"]).contents

    def _collect_properties(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, dict):
            return {}
        found = dict(schema.get("properties", {}))
        for part in self._list_parts(schema):
            found |= self._collect_properties(part)
        return found

    def _choose(self, found: Any, candidates: Iterator[tuple[Any, Any]]) -> Any:
        """Return the first candidate that fits its schema, or else what was found."""
        return next(
            (candidate for candidate, schema in candidates if self._fits(candidate, schema)),
            found,
        )

    def _fits(self, found: Any, schema: Any) -> bool:
        return self._validator.evolve(schema=schema).is_valid(found)

    def _convert_to(self, found: Any, wanted: str, schema: Any) -> Any:
        if wanted == "object" and isinstance(found, dict):
            return self._convert_properties(found, schema)
        if wanted == "array" and self._is_xml:
            return self._convert_items(found, schema)
        if found is None and self._is_xml:
            return {"string": "", "object": {}}.get(wanted)
        return convert_text(found, wanted) if isinstance(found, str) else found

    def _convert_properties(self, found: dict[Any, Any], schema: Any) -> dict[Any, Any]:
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        others = schema.get("additionalProperties")
        converted = {}
        for name, value in found.items():
            wanted = [properties[name]] if name in properties else []
            wanted += [each for pattern, each in patterns.items() if re.search(pattern, str(name))]
            for each in wanted or [others]:
                value = self.convert(value, each)
            converted[name] = value
        return converted

    def _convert_items(self, found: Any, schema: Any) -> list[Any]:
        """`<tags><tag>a</tag><tag>b</tag></tags>` and `<tags>a</tags><tags>b</tags>` are lists, as
        are those of one element. Where both readings are possible, the former is taken."""
        if not (isinstance(found, dict) and len(found) == 1):
            return self._convert_each(_list_elements(found), schema)
        [(name, inner)] = found.items()
        unwrapped = self._convert_each(_list_elements(inner), schema)
        if not self._is_named(name, schema.get("items")) or self._fits(unwrapped, schema):
            return unwrapped
        return self._convert_each([found], schema)

    def _is_named(self, name: str, schema: Any) -> bool:
        """Whether an item may have a child of this name; a list has some of any name."""
        if isinstance(schema, dict) and "$ref" in schema:
            schema = self._look_up(schema)
        is_list = isinstance(schema, dict) and "array" in _list_types(schema)
        return is_list or name in self._collect_properties(schema)

    def _convert_each(self, items: list[Any], schema: Any) -> list[Any]:
        first, rest = schema.get("prefixItems", []), schema.get("items")
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems")
        return [
            self.convert(item, first[number] if number < len(first) else rest)
            for number, item in enumerate(items)
        ]


def _list_elements(found: Any) -> list[Any]:
    """Elements of one name as a list; xmltodict has one for several, and no list for one."""
    return found if isinstance(found, list) else [] if found is None else [found]


def _list_types(schema: dict[str, Any]) -> list[str]:
    """The types that a schema names, or that its other keywords are about."""
    if "type" in schema:
        return schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if values := [schema["const"]] if "const" in schema else schema.get("enum", []):
        return list(dict.fromkeys(TYPES[type(each)] for each in values))
    if "properties" in schema or "patternProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def convert_text(text: str, wanted: str) -> Any:
    """Convert text to a JSON type; return it unchanged if it is no such value."""
    plain = text.strip()
    if wanted == "integer" and INTEGER.fullmatch(plain):
        return int(plain)
    if wanted == "number" and NUMBER.fullmatch(plain):
        return float(plain)
    if wanted == "boolean":
        return TRUTH.get(text.lower(), text)
    return None if wanted == "null" and not text else text
