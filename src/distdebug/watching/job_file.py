"""
What stands in a job file, whoever wrote it?

YAML can name any Python object, and a few lines of it can stand for billions
of values.  So only plain values are built, of a small ordinary file, and only
after their number is known to be small too.
"""

from __future__ import annotations

import os
import re

from collections.abc import Mapping
from typing import Any

from .._files import read_ordinary
from .._text import clean
from ..errors import ConfigError, MissingDependencyError


__all__ = ["read_job_file"]

_MOST_BYTES = 1 << 18
_REMEDY = "write a section, such as: debug: {enabled: true}"
_MOST_VALUES = 100_000
_MOST_DEPTH = 1000
_BRACKETS = re.compile(rb"[][{}]")


def read_job_file(path: str | os.PathLike[str]) -> Mapping[object, object]:
    """
    Read a job file in YAML.

    Args:
        path: The file, of at most 256 KiB.

    Returns:
        The sections by name; nothing for an empty file.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or is not made of
            sections.

        MissingDependencyError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        msg = "to read job files, PyYAML is needed, which is not installed"
        raise MissingDependencyError(
            msg, remedy="pip install pyyaml"
        ) from None

    name = clean(os.fspath(path), limit=400)
    try:
        data = read_ordinary(path, _MOST_BYTES)
        _check_depth(data)
        document = _build(yaml.SafeLoader(data))
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror}"
        raise ConfigError(
            msg, remedy="see that it is there, and that you may read it"
        ) from None
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        msg = f"{name}: cannot be understood: {clean(str(error), limit=300)}"
        raise ConfigError(msg, remedy=_REMEDY) from None

    if document is None:
        return {}
    if not isinstance(document, Mapping):
        msg = f"{name}: must be made of sections with names"
        raise ConfigError(msg, remedy=_REMEDY)
    return document


def _check_depth(data: bytes) -> None:
    """
    Refuse brackets in brackets: at each, PyYAML looks at all that are open.
    """
    depth = 0
    for bracket in _BRACKETS.findall(data):
        depth = max(depth + (1 if bracket in b"[{" else -1), 0)
        if depth > _MOST_DEPTH:
            msg = f"more than {_MOST_DEPTH:,} brackets are open"
            raise ValueError(msg)


def _build(loader: Any) -> object:
    try:
        root = loader.get_single_node()
        if root is None:
            return None

        _check_size(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_size(root: Any) -> None:
    """
    Refuse values that are many, counting those again that have an alias.
    """
    waiting, count = [root], 0
    while waiting:
        count += 1
        if count + len(waiting) > _MOST_VALUES:
            msg = f"more than {_MOST_VALUES:,} values"
            raise ValueError(msg)

        value = waiting.pop().value
        if isinstance(value, list):  # of nodes, or of pairs of nodes
            for part in value:
                waiting.extend(part if isinstance(part, tuple) else (part,))
