"""
Parse rank, pid, host, and mesh coordinates from headings and file names.

People and scripts write "=== rank 3 ===" or "Pyspy dump for PID 309:" before a
stack, or put the same into the name of its file.  A line is a heading only if
nothing else is in it, because logs mention ranks all the time.
"""

from __future__ import annotations

import re

import attrs

from .._lazy import late_pattern
from ..identity import (
    MESH_DIMENSIONS,
    OTHER_RANK_IN_HEADING,
    RANK_IN_HEADING,
    coordinates_in_title,
    rank_in_name,
)


Coordinates = tuple[tuple[str, int], ...]


@attrs.frozen(kw_only=True)
class Heading:
    """
    The process that a heading names; ``None`` if it does not.
    """

    rank: int | None = None
    world_size: int | None = None
    pid: int | None = None
    host: str | None = None
    coordinates: Coordinates = ()


_MOST_HEADING = 400

_TOKEN = late_pattern(
    rf"{OTHER_RANK_IN_HEADING}|{RANK_IN_HEADING}"
    r"|(?:process[ _]?id|process|pid)[ _:=#]{1,3}(?P<pid>\d{1,10})\b"
    r"|pid(?P<pid2>\d{1,10})\b"
    r"|(?:host(?:name)?|node(?:name)?|on|@)[ :=]{1,3}"
    r"(?P<host>[A-Za-z][\w.-]{0,99})"
    # The periodic dumps of torch.distributed.debug say where a rank answers.
    r"|https?://(?P<server>[A-Za-z][\w.-]{0,99}):\d{1,5}/handler/[\w?&=]{1,99}"
    rf"|(?P<dimension>{'|'.join(MESH_DIMENSIONS)})"
    r"[ _:=]?(?P<place>\d{1,5})(?![A-Za-z])"
    r"|(?P<file>[\w./-]{1,300}\.(?:txt|log|out|json|stacks?|bt))\b"
    r"|(?:stacks?|stack[- ]?traces?|(?:back)?traces?|dumps?|output|py-?spy"
    r"|(?:cuda-?)?gdb|pystack|faulthandler|threads?|worker|scheduler|of|for|the"
    r"|from|at|main|python|native)\b"
    r"|['`\u2019]s\b"
    r"|[\s=#*_~<>\[\](){}:|.,;/!-]{1,200}",
    re.IGNORECASE,
)
_COMMAND = late_pattern(
    r"(?:\S{0,99}[$#%>] )?(?:sudo )?(?:\S{0,200}/)?"
    r"(?:py-spy dump|pystack remote|(?:cuda-)?gdb)\s(?:.{0,200}\s)?"
    r"(?:--?p(?:id)?[ =]|attach )?(?P<pid>\d{1,10})\b"
)
_RAY = late_pattern(r"Stack dump for \S{1,99} +(?P<pid>\d{1,10}) ")
_CORE = late_pattern(
    r"Opening GPU coredump: .{0,200}?core_\d{1,20}_(?P<host>[\w.-]{1,99})"
    r"_(?P<pid>\d{1,10})\."
)
_TITLE = late_pattern(r"\w{1,40}::")

# The names that programs give to stack files; these come before a rank in the
# name, which is that of the host.
_NAMES_WITH_HOST = (
    late_pattern(
        r"(?:pyspy|cuda-?gdb|gdb|pystack|faulthandler|stacks?)_"
        r"(?P<host>.{1,250})_(?P<pid>\d{1,10})\.\w{1,10}"
    ),
    late_pattern(
        r"(?P<host>.{1,250}?)_(?:prefill|decode|agg)\w{0,20}_w\d{1,6}_.{1,99}"
    ),
)
_ALL_NAMES = (
    *_NAMES_WITH_HOST,
    late_pattern(r"trace-(?P<host>[A-Za-z].{0,250})\.out"),
    late_pattern(
        r"VLLM_STACK_DUMP_for_(?P<name>.{1,99})_(?P<pid>\d{1,10})\.\w{1,10}"
    ),
    late_pattern(
        r"(?:py-?spy|cuda-?gdb|gdb|pystack|faulthandler|stacks?)"
        r"[_.-](?P<pid>\d{1,10})\.\w{1,10}"
    ),
)


def parse_heading(line: str) -> Heading | None:
    """
    Parse a heading before a stack; ``None`` if the line is none.
    """
    text = line.strip()
    if not 3 <= len(text) <= _MOST_HEADING:
        return None
    matches = (p.match(text) for p in (_COMMAND, _CORE, _RAY))
    if match := next(filter(None, matches), None):
        known = match.groupdict()
        return Heading(pid=int(known["pid"]), host=known.get("host"))

    known = {}
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        known |= {k: v for k, v in match.groupdict().items() if v}
        if match["dimension"]:
            places = known.setdefault("places", "")
            known["places"] = f"{places} {match['dimension']}{match['place']}"

    return _make_heading(known)


def _make_heading(known: dict[str, str]) -> Heading | None:
    if not known.keys() & {"rank", "pid", "pid2", "places", "file"}:
        return None

    from_name = parse_file_name(known.get("file", ""))
    rank, size = known.get("rank"), known.get("size")
    pid = known.get("pid") or known.get("pid2")
    return Heading(
        rank=int(rank) if rank else from_name.rank,
        world_size=int(size) if size else None,
        pid=int(pid) if pid else from_name.pid,
        host=known.get("host") or known.get("server") or from_name.host,
        coordinates=coordinates_in_title(known.get("places", "")),
    )


def parse_file_name(filename: str) -> Heading:
    """
    Parse rank, pid, and host from the name of a stack file.

    Args:
        filename: The name, with or without folders.

    Returns:
        An empty heading if the name holds none of them.
    """
    name = filename.replace("\\", "/").rpartition("/")[2]
    if len(name) > _MOST_HEADING:
        return Heading()

    rank = rank_in_name(name)
    patterns = _NAMES_WITH_HOST if rank is not None else _ALL_NAMES
    matches = (pattern.fullmatch(name) for pattern in patterns)
    match = next(filter(None, matches), None)
    if match is None:
        return Heading(rank=rank)

    known = match.groupdict()
    pid = known.get("pid")
    return Heading(
        pid=int(pid) if pid else None,
        host=known.get("host"),
        coordinates=coordinates_in_title(known.get("name") or ""),
    )


def parse_coordinates(command: str) -> Coordinates:
    """
    Parse the mesh coordinates from the title of a process.

    Args:
        command: Its command line or title, such as
            ``"sglang::scheduler_PP0_TP1"``.

    Returns:
        Names of dimensions in lower case, and the index along each.
    """
    return coordinates_in_title(command) if _TITLE.match(command) else ()
