"""
What tests of Ray share.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys

from types import ModuleType, SimpleNamespace

import pytest

from distdebug.ray import cluster as ray_cluster


class Cluster:
    """
    What a Ray cluster says, and what it was asked.
    """

    def __init__(self):
        self.tables = {}
        self.workers = []
        self.said = None
        self.asked = []

    def answer(self, question):
        """
        What the process that is connected to Ray prints.
        """
        self.asked.append(question)
        if self.said is not None:
            return self.said
        if question["ask"] != "run_tasks":
            return {"answer": self.tables}
        workers = self.workers
        return {"answer": workers(question) if callable(workers) else workers}


@pytest.fixture
def cluster(monkeypatch):
    """
    A Ray cluster; only the process that is connected to it is left out.
    """
    found = Cluster()
    ray = ModuleType("ray")
    ray.__spec__ = importlib.machinery.ModuleSpec("ray", None)
    ray.is_initialized = lambda: False

    def run(argv, *, data, **_):
        said = found.answer(json.loads(data))
        if "output" not in said:
            said = {"output": json.dumps(said).encode()}
        return SimpleNamespace(**{"status": 0, "stderr": b"", **said})

    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_cluster, "run_child", run)
    return found
