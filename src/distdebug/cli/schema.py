"""
``schema``: the JSON Schema of what commands print with ``--json``.

It is made from the types of results, so that it cannot differ from them.
"""

from __future__ import annotations

import json
import re
import typing

from argparse import Namespace
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union

from .._lazy import late_pattern
from .command import command
from .output import JSON_HEAD


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Commands whose verdict is that of a whole diagnosis.
_DIAGNOSING = ("analyze", "demo", "diagnose", "snapshot")
_SIMPLE = {
    bool: "boolean",
    float: "number",
    int: "integer",
    NoneType: "null",
    str: "string",
}
_FIELD = late_pattern(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)

_Schema = dict[str, Any]


@command("schema", "print the JSON Schema of what --json prints")
def schema(args: Namespace) -> int:
    """
    Print the JSON Schema of what commands print with --json.

    Within schema 1, later versions only add fields and causes.

    Example:
      {prog} schema > distdebug.schema.json
      {prog} diagnose --json dumps/ > a.json; check-jsonschema \
--schemafile distdebug.schema.json a.json
    """
    del args
    print(json.dumps(make_schema(), indent=2))
    return 0


def make_schema() -> _Schema:
    """
    Return the JSON Schema of one object that a command prints.

    All commands share the head, and the layout of findings and of what is
    missing; what ``diagnose`` and its like print is a whole diagnosis.
    """
    from ..findings import Diagnosis, Finding, Missing

    types = _Types()
    found, gone = (types.describe(x) for x in (Finding, Missing))
    diagnosis = types.describe(Diagnosis)
    head = {name: {"const": value} for name, value in JSON_HEAD.items()}
    return {
        "$schema": _DIALECT,
        "$id": f"urn:distdebug:schema:{JSON_HEAD['schema']}",
        "title": "What a command of distdebug prints with --json",
        "type": "object",
        "required": [*head, "version", "command"],
        "properties": {
            **head,
            "version": {"type": "string"},
            "command": {"type": "string"},
            "findings": {"type": "array", "items": found},
            "missing": {"type": "array", "items": gone},
        },
        "if": {
            "properties": {"command": {"enum": [*_DIAGNOSING]}},
            "required": ["verdict"],
        },
        "then": diagnosis,
        "$defs": types.definitions,
    }


class _Types:
    """
    Describe types, and define each class once.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, _Schema] = {}

    def describe(self, hint: Any) -> _Schema:
        """
        Return the schema of what a type is in JSON.

        Raises:
            TypeError: It has no layout in JSON.
        """
        origin, parameters = typing.get_origin(hint), typing.get_args(hint)
        if hint in _SIMPLE:
            return {"type": _SIMPLE[hint]}
        if origin is Literal:
            return {"enum": [*parameters]}
        if origin in {Union, UnionType}:
            return {"anyOf": [self.describe(x) for x in parameters]}
        if origin is tuple and parameters[1:] == (...,):
            return {"type": "array", "items": self.describe(parameters[0])}
        if isinstance(hint, type) and issubclass(hint, PurePath):
            return {"type": "string"}
        if isinstance(hint, type):
            return self._refer_to(hint)
        msg = f"no layout in JSON is known of {hint}"
        raise TypeError(msg)

    def _refer_to(self, cls: type) -> _Schema:
        if cls.__name__ not in self.definitions:
            self.definitions[cls.__name__] = {}  # it may contain itself
            self.definitions[cls.__name__] = (
                _describe_enum(cls)
                if issubclass(cls, Enum)
                else self._describe_class(cls)
            )
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _describe_class(self, cls: type) -> _Schema:
        import attrs

        about = dict(_described_fields(cls))
        hints = typing.get_type_hints(cls)
        names = [x.name for x in attrs.fields(cls) if x.repr]
        properties = {
            name: {
                **self.describe(hints[name]),
                **({"description": about[name]} if name in about else {}),
            }
            for name in names
        }
        return {"type": "object", "required": names, "properties": properties}


def _describe_enum(cls: type[Enum]) -> _Schema:
    # Later versions may add members.
    return {"anyOf": [{"enum": [x.value for x in cls]}, {"type": "string"}]}


def _described_fields(cls: type) -> Iterator[tuple[str, str]]:
    """
    Yield what the docstring of a class says of each attribute.
    """
    _, _, attributes = (cls.__doc__ or "").partition("Attributes:\n")
    lines = "\n".join(x[4:] for x in attributes.splitlines())
    for name, text in _FIELD.findall(lines):
        yield name, " ".join(text.replace("``", "`").split())
