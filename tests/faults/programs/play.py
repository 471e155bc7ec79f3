"""
Plays scenes in processes of their own, and prints what becomes of each.

Usage: ``play.py SCENES FOLDER TARGET [nofile=N] [memory=MIB] [fsize=N]
[readonly] [fork] [again]``.

The names of scenes are joined by commas; each is played in a child, so that
all of them have to be loaded only once.  Limits begin once all is prepared, and
a first play over; with *readonly* nothing can be written any more then.  With
*again* the first scene says that it is ready, waits for a line, and is played
without end.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import traceback

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
    names, place, target, *options = sys.argv[1:]
    if "again" in options:
        play_again(names, Path(place), int(target))
    for name in names.split(","):
        child = os.fork()
        if child == 0:
            play_alone(name, Path(place, name), int(target), options)
        _, status = os.waitpid(child, 0)
        tell({"name": name, "status": status})


def play_again(name: str, folder: Path, target: int) -> None:
    """
    Play until somebody ends us.
    """
    act = SCENES[name](new(folder), target)
    ended = []

    def end(number, frame):
        # A command may end by it as it ought to, and would be played again.
        ended.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, end)
    print("ready", flush=True)
    sys.stdin.readline()
    while not ended:
        outcome(act)
        act = SCENES[name](new(folder), target)
    sys.exit(128 + signal.SIGINT)


def play_alone(
    name: str, folder: Path, target: int, options: list[str]
) -> None:
    """
    Play in this child, and end it.
    """
    try:
        folder.mkdir()
        play(name, folder, target, options)
    except BaseException:  # noqa: BLE001 it ends here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def play(name: str, folder: Path, target: int, options: list[str]) -> None:
    """
    Play under some limits, and tell what was raised.
    """
    outcome(SCENES[name](new(folder), target))  # all is imported
    act = SCENES[name](new(folder), target)
    if "readonly" in options:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o555)
    for option in options:
        limit, has_number, number = option.partition("=")
        if has_number:
            which, unit = LIMITS[limit]
            used = memory() if limit == "memory" else 0
            most = int(number) * unit + used
            resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    if "fork" in options:
        fork_in_the_middle(act)
    error = outcome(act)
    told = {
        "name": name,
        "error": None if error is None else repr(error),
        "bases": [x.__name__ for x in type(error).__mro__],
        "remedy": getattr(error, "remedy", None),
    }
    tell(told)


def tell(told: dict[str, object]) -> None:
    """
    Print a line, with no more memory or files than there are.
    """
    os.write(1, f"{json.dumps(told)}\n".encode())


def outcome(act) -> BaseException | None:
    """
    What an act raises, if it does.
    """
    try:
        act()
    except Exception as error:  # noqa: BLE001 that is what is told
        return error
    return None


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
