"""
Load the names of a package when they are first used (PEP 562).

A room's ``__init__`` lists what its neighbours may use as ordinary imports, once, for
readers and type checkers alike.  At run time they are taken from there, so that
``from distdebug.room import name`` loads the one module that has it.
"""

from __future__ import annotations

import sys


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy_names(
    package: str, **computed: Callable[[], object]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """
    Return ``__getattr__`` and ``__dir__`` for *package*.

    Args:
        package: Its full name.  Its source has one import per name, as isort
            writes it: ``from .module import name as name``.

        computed: Further names, with functions that return their values.
    """
    known: dict[str, str] = {}

    def homes() -> dict[str, str]:
        if not known:
            known.update(_homes(package))
        return known

    def get(name: str) -> object:
        if name == "__all__":
            return sorted(homes())
        value: object
        if name in computed:
            value = computed[name]()
        elif name.startswith("__") or name not in homes():
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        else:
            from importlib import import_module

            value = getattr(import_module(homes()[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})


def _homes(package: str) -> dict[str, str]:
    """
    Return the module of each name, as the source of *package* imports it.
    """
    # A loader of files or of zip archives; both know the source.
    loader: Any = sys.modules[package].__loader__
    # Long lines are wrapped in parentheses.
    words = loader.get_source(package).replace("(", " ").split()
    return {
        name: module
        for module, verb, name, again in zip(
            words, words[1:], words[2:], words[3:], strict=False
        )
        if module[0] == "." and verb == "import" and again == "as"
    }
