"""
Run the command line: parse arguments, run one command, set the exit status.
"""

from __future__ import annotations

import errno
import os
import sys

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .cli import build_parser, set_verbosity
from .errors import DistdebugError


_NO_ROOM = {errno.EDQUOT, errno.EFBIG, errno.ENOSPC}


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        The exit status: 0 examined and found nothing wrong, 1 found something,
        2 could not examine, 130 interrupted, 141 the reader of the output is gone.
    """
    _prepare_streams()
    try:
        args = build_parser(_program_name()).parse_args(argv)
        set_verbosity(getattr(args, "verbosity", 0))
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # pressed once more
            _complain("interrupted")
        return 130
    except MemoryError:
        _complain(
            "there is not enough memory",
            "Try: allow more (ulimit -v), or ask for fewer ranks or files",
        )
        return 2
    except (DistdebugError, OSError) as exc:
        _complain(*_told(exc))
        return 2
    except Exception:  # noqa: BLE001 1 would say that something was found
        sys.excepthook(*sys.exc_info())
        return 2

    return status


def _program_name() -> str:
    name = Path(sys.argv[0]).name
    return "python -m distdebug" if name == "__main__.py" else "distdebug"


def _prepare_streams() -> None:
    for name in ("stdin", "stdout", "stderr"):
        # The parent closed it, and the next file that is opened would get its
        # number.
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w"))
    for stream in (sys.stdout, sys.stderr):
        # A terminal whose encoding has no ellipsis still gets the verdict.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _told(exc: Exception) -> Sequence[str]:
    # Files of ours are named; where there is no name, it was the output.
    if isinstance(exc, OSError) and not exc.filename and exc.errno in _NO_ROOM:
        return (
            f"the output cannot be written: {os.strerror(exc.errno)}",
            "Try: send it to a disk that has room",
        )
    return str(exc), *getattr(exc, "__notes__", ())


def _complain(*lines: str) -> None:
    from ._text import clean

    shown = [clean(line, limit=1000) for line in lines]
    # Where nothing can be printed, the exit status remains.
    with suppress(OSError):
        print(f"distdebug: {shown[0]}", *shown[1:], sep="\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
