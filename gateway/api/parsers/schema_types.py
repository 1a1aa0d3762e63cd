"""Which types of values a JSON Schema allows for an argument."""

from collections.abc import Mapping
from typing import Any

MOST_STEPS = 64
"""Parts of a schema that are looked at: a reference may lead back to itself."""
_KINDS: Mapping[type, frozenset[str]] = {
    str: frozenset(("string",)),
    bool: frozenset(("boolean",)),
    int: frozenset(("integer", "number")),
    float: frozenset(("number",)),
    list: frozenset(("array",)),
    dict: frozenset(("object",)),
    type(None): frozenset(("null",)),
}


def kinds_of(value: object) -> frozenset[str]:
    """The types of JSON Schema that a value of JSON has."""
    return _KINDS[type(value)]


def types_of(argument: str, schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that an argument may have, by the schema of all arguments. Empty: any, or none is known."""
    return types_in(part_of(schema, schema, argument), schema)


def types_in(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The same of a value by its own schema, a part of `root`."""
    return _Reader(root).types(schema)


def part_of(schema: object, root: Mapping[str, Any], name: str | None = None) -> object:
    """The schema that a member of an object has by the object's schema; None if none is known.

    `name`: the member's; None: of an item of a list by the list's schema. `root`: of what `schema` is a part.
    """
    return _Reader(root).part(schema, name)


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MOST_STEPS

    def types(self, schema: object) -> frozenset[str]:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0:
            return frozenset()
        match schema:
            case {"type": str(name)}:
                return frozenset((name,))
            case {"type": list(names)}:
                return frozenset(name for name in names if isinstance(name, str))
            case {"enum": list(values)}:
                return frozenset().union(*(kinds_of(value) for value in values))
            case {"const": value}:
                return kinds_of(value)
            case {"$ref": str(place)}:
                return self.types(self._at(place))
            case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
                found = [self.types(choice) for choice in choices]
                return frozenset().union(*found) if all(found) else frozenset()
            case {"allOf": list(parts)}:
                return next(filter(None, map(self.types, parts)), frozenset())
        return frozenset()

    def part(self, schema: object, name: str | None) -> object:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0:
            return None
        if name is None:
            own = schema.get("items")
        else:
            properties = schema.get("properties")
            own = properties.get(name) if isinstance(properties, dict) else None
        others = [self._at(place)] if isinstance(place := schema.get("$ref"), str) else []
        for keyword in ("anyOf", "oneOf", "allOf"):
            others += choices if isinstance(choices := schema.get(keyword), list) else []
        if own is None:
            found = (self.part(each, name) for each in others)
            own = next((each for each in found if each is not None), None)
        return schema.get("additionalProperties") if own is None and name is not None else own

    def _at(self, place: str) -> object:
        """What a reference such as `#/$defs/Unit` means."""
        found: object = self._root
        for name in place.split("/")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        return found
