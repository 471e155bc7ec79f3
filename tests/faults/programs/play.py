"""
Plays a scene in a process of its own, and prints what becomes of it.

Usage: ``play.py SCENE FOLDER TARGET [nofile=N] [memory=MIB] [fsize=N] [fork]
[wait] [again]``.

With *wait* it says that it is ready, and waits for a line; with *again* it
plays without end.  Limits begin once all is prepared, and the first play over.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading

from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[1]))

from scenes import SCENES


LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "memory": (resource.RLIMIT_AS, 1 << 20),
    "fsize": (resource.RLIMIT_FSIZE, 1),
}


def main() -> None:
    """
    Play.
    """
    name, place, target, *options = sys.argv[1:]
    folder = Path(place)
    numbers = dict(x.split("=") for x in options if "=" in x)
    if numbers or "fork" in options:
        SCENES[name](new(folder), int(target))()  # all is imported
    act = SCENES[name](new(folder), int(target))
    if "wait" in options:
        print("ready", flush=True)
        sys.stdin.readline()
    for limit, number in numbers.items():
        which, unit = LIMITS[limit]
        used = memory() if limit == "memory" else 0
        most = int(number) * unit + used
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    if "fork" in options:
        fork_in_the_middle(act)
        return

    while True:
        tell(act)
        if "again" not in options:
            return
        act = SCENES[name](new(folder), int(target))


def tell(act) -> None:
    """
    Play once, and print what was raised.
    """
    error: BaseException | None = None
    try:
        act()
    except Exception as exc:  # noqa: BLE001 that is what is told
        error = exc
    told = {
        "error": None if error is None else repr(error),
        "bases": [x.__name__ for x in type(error).__mro__],
        "remedy": getattr(error, "remedy", None),
    }
    print(json.dumps(told), flush=True)


def fork_in_the_middle(act) -> None:
    """
    Fork while another thread plays; the child plays as well.
    """
    thread = threading.Thread(target=act)
    thread.start()
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            try:
                act()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    thread.join()
    tell(act)


def memory() -> int:
    """
    How much memory is addressed now?
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def new(folder: Path) -> Path:
    """
    A new folder.
    """
    number = sum(1 for _ in folder.iterdir())
    made = folder / f"play{number}"
    made.mkdir()
    return made


main()
