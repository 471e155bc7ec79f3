"""
What the tests of commands share.
"""

from __future__ import annotations

import json
import sys

from types import SimpleNamespace

import jsonschema
import pytest

from distdebug.__main__ import main
from distdebug.cli import output
from distdebug.cli.schema import make_schema
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(autouse=True)
def keeps_to_schema(monkeypatch):
    """
    Whatever a command prints as JSON is as the schema says.
    """
    validator = jsonschema.Draft202012Validator(make_schema())

    def dumps(data, **options):
        text = json.dumps(data, **options)
        validator.validate(json.loads(text))
        return text

    monkeypatch.setattr(output, "json", SimpleNamespace(dumps=dumps))


@pytest.fixture
def stuck(tmp_path):
    """
    The dumps of a job in which rank 2 did not come.
    """
    job = SimulatedJob(4, stack_depth=3)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(tmp_path / "dumps", job)
    return str(tmp_path / "dumps")


@pytest.fixture
def run_in_terminal(monkeypatch):
    """
    Runs a command while standard error is a terminal.
    """

    def run(*argv, columns=80):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        return main(list(argv))

    return run
