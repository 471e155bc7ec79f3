"""
Where is the nsight plugin of Ray, without importing Ray?
"""

from __future__ import annotations

import importlib.util
import os

from pathlib import Path

from ..._files import is_folder, is_there, matching, read_ordinary


__all__ = ["has_py_executable", "locate_plugin", "ray_version"]

_FOLDER = Path("_private", "runtime_env")
_PLUGIN = "nsight.py"
_MOST_BYTES = 1 << 16


def locate_plugin(
    path: str | os.PathLike[str] | None = None,
) -> Path | None:
    """
    Where is the source of Ray's nsight plugin?

    Args:
        path: The file itself, the package ``ray``, or a folder that it is
            installed in, such as ``site-packages`` or a virtual environment;
            by default what ``import ray`` would load.

    Returns:
        The file; ``None`` if there is none.
    """
    if path is None:
        package = _package()
        return package and _ordinary(package / _FOLDER / _PLUGIN)

    given = Path(os.path.abspath(path))  # noqa: PTH100 links stay as they are
    if given.name == _PLUGIN:
        return _ordinary(given)

    folders = [given, given / "ray"]
    folders += matching(given, "lib*/python3*/site-packages/ray")
    files = (_ordinary(folder / _FOLDER / _PLUGIN) for folder in folders)
    return next(filter(None, files), None)


def ray_version(plugin: Path) -> str | None:
    """
    Which version of Ray does this plugin belong to?

    Args:
        plugin: As `locate_plugin` gives it.

    Returns:
        Such as ``"2.60.0"``; ``None`` if its package does not tell.
    """
    try:
        told = read_ordinary(plugin.parents[2] / "_version.py", _MOST_BYTES)
    except (OSError, ValueError, IndexError):
        return None

    for line in told.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "version":
            return value.strip().strip("\"'") or None
    return None


def has_py_executable() -> bool | None:
    """
    Does the Ray that is installed here start workers by a ``py_executable``?

    Returns:
        Whether it does; ``None`` if there is no Ray.
    """
    package = _package()
    if package is None:
        return None

    return is_there(package / _FOLDER / "py_executable.py")


def _package() -> Path | None:
    try:
        spec = importlib.util.find_spec("ray")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None

    # Within an archive, there is no such folder.
    folder = Path(spec.origin).parent
    return folder if is_folder(folder) else None


def _ordinary(path: Path) -> Path | None:
    try:
        return path if path.is_file() else None
    except OSError:
        return None
