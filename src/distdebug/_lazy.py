"""
Load the names of packages, and compile patterns, when they are first used.

A room's ``__init__`` lists what its neighbours may use as ordinary imports, once, for
readers and type checkers alike.  At run time they are taken from there, so that
``from distdebug.room import name`` loads the one module that has it (PEP 562).

A module with many regular expressions costs more to load than to run, and most
are asked of few jobs.
"""

from __future__ import annotations

import sys


TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

    from collections.abc import Callable
    from typing import Any, AnyStr


def lazy_names(
    package: str,
    former: tuple[str, ...] = (),
    **computed: Callable[[], object],
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """
    Return ``__getattr__`` and ``__dir__`` for *package*.

    Args:
        package: Its full name.  Its source has one import per name, as isort
            writes it: ``from .module import name as name``; and of modules,
            ``from . import name as name``.

        former: Modules whose names the package had, too, in former versions.

        computed: Further names, with functions that return their values.
    """
    known: dict[str, str] = {}

    def homes() -> dict[str, str]:
        if not known:
            known.update(_homes(package))
        return known

    def get(name: str) -> object:
        if name == "__all__":
            return sorted(n for n, home in homes().items() if home != ".")
        if name in computed:
            value = computed[name]()
        elif name.startswith("_"):
            raise _no_attribute(package, name)
        elif name in homes():
            value = _load(package, homes()[name], name)
        else:
            return _load_former(package, former, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})


def _load(package: str, home: str, name: str) -> object:
    from importlib import import_module

    if home == ".":
        return import_module(f".{name}", package)
    return getattr(import_module(home, package), name)


def _load_former(package: str, former: tuple[str, ...], name: str) -> object:
    for home in former:
        module = _load(package, ".", home)
        if name in module.__all__:  # type: ignore[attr-defined]
            import warnings

            warnings.warn(
                f"{package}.{name} is {package}.{home}.{name} now",
                DeprecationWarning,
                stacklevel=3,
            )
            return getattr(module, name)
    raise _no_attribute(package, name)


def _no_attribute(package: str, name: str) -> AttributeError:
    return AttributeError(f"module {package!r} has no attribute {name!r}")


def _homes(package: str) -> dict[str, str]:
    """
    Return the module of each name, as the source of *package* imports it.
    """
    # A loader of files or of zip archives; both know the source.
    module: Any = sys.modules[package]
    loader = module.__loader__
    if not hasattr(loader, "get_source"):
        # pytest loads the modules of its plugins by a loader that does not.
        from importlib.machinery import SourceFileLoader

        loader = SourceFileLoader(package, module.__file__)
    # Long lines are wrapped in parentheses.
    words = loader.get_source(package).replace("(", " ").split()
    return {
        name: home
        for home, verb, name, again in zip(
            words, words[1:], words[2:], words[3:], strict=False
        )
        if home[0] == "." and verb == "import" and again == "as"
    }


def late_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """
    Return a regular expression that is compiled when it is first used.

    Args:
        text: The expression, which is known to be one.

        flags: Those of :func:`re.compile`.
    """
    return _LatePattern(text, flags)  # type: ignore[return-value]


class _LatePattern:
    """
    What a compiled pattern has, once it is asked for.
    """

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # pickle and copy ask for what is not there
            raise AttributeError(name)

        import re

        compiled: Any = re.compile(self.pattern, self._flags)
        value = getattr(compiled, name)
        setattr(self, name, value)
        return value

    def __reduce__(self) -> tuple[object, ...]:
        return _LatePattern, (self.pattern, self._flags)
