"""
The published schema of what commands print as JSON.

That outputs keep to it is checked wherever one is printed: see `conftest`, and
the golden gate.
"""

from __future__ import annotations

import json

from pathlib import Path

import jsonschema
import pytest

from distdebug import diagnose
from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.cli.schema import make_schema


PUBLISHED = Path(__file__).parents[3] / "docs/reference/distdebug.schema.json"


def test_published(capsys):
    """
    The command prints what is published.
    """
    assert 0 == main(["schema"])

    assert capsys.readouterr().out == PUBLISHED.read_text("utf-8")


def test_described():
    """
    It is valid, and says what each field of a diagnosis means.
    """
    schema = make_schema()

    jsonschema.Draft202012Validator.check_schema(schema)
    for name in ("Diagnosis", "Finding", "Evidence", "Missing"):
        fields = schema["$defs"][name]["properties"]
        assert all(field.get("description") for field in fields.values()), name
    causes = schema["$defs"]["Cause"]["anyOf"][0]["enum"]
    assert [cause.value for cause in Cause] == causes


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["verdict", "ranks"], ["0"]),
        (["verdict", "confidence"], "sure"),
        (["findings", 0, "evidence"], [{"kind": "log"}]),
        (["victims"], 3),
        (["schema"], 2),
        (["tool"], "other"),
    ],
)
def test_refuses(stuck, path, value):
    """
    What is not of this layout is refused; what later versions add is not.
    """
    validator = jsonschema.Draft202012Validator(make_schema())
    head = {"schema": 1, "tool": "distdebug", "version": "1"}
    plain = json.loads(
        json.dumps(
            {**head, **diagnose(stuck).to_dict(), "command": "diagnose"}
        )
    )
    later = {**plain, "added": 1, "verdict": {**plain["verdict"], "new": 2}}
    later["verdict"]["cause"] = "a_new_cause"
    validator.validate(plain)
    validator.validate(later)

    *parents, last = path
    place = plain
    for key in parents:
        place = place[key]
    place[last] = value

    with pytest.raises(jsonschema.ValidationError):
        validator.validate(plain)
