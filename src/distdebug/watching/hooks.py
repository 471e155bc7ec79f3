"""
Who is told that a job hangs, and how?

A hook is called once a snapshot was taken.  It may fail, but it neither takes
longer than it may, nor leaves a process behind, nor ends the watch: what it
raises is for the log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import stat

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .._text import clean
from ..errors import ConfigError, HookError
from ..nodes.process import run_process
from ..nodes.results import Bound, Ended
from .config import a_number
from .hang import Hang, say
from .webhook import message_for, post, read_address


__all__ = ["command_hook", "webhook_hook"]

_QUOTED = re.compile(r"""\\.|'[^']*'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_VARIABLE = re.compile(r"(?<!\\)\$(?:\w+|[{(][^)}]*[)}]?)")
_OPERATOR = re.compile(r"&&|\|\||>>|[|&;<>]|`[^`]*`?")
# How long a command has to clean up after SIGTERM.
_GRACE_S = 2.0
_MOST_SUMMARY = 1000


def command_hook(
    command: str | Sequence[str], *, timeout_s: float = 60.0
) -> Callable[[Hang], None]:
    """
    Run a command when a job hangs.

    It finds all that is known as JSON on its standard input, and the folder
    and the summary in the environment, as ``DISTDEBUG_FOLDER`` and
    ``DISTDEBUG_SUMMARY``.  It runs without a shell, in a process group of its
    own, which is ended when its time is over.

    Args:
        command: Its words.  A text is split as a shell does it, but nothing
            in it is replaced, and pipes and variables are refused; for those,
            use ``sh -c '…'``.

        timeout_s: How long it may take, in seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        command cannot be started, fails, or does not end in time.

    Raises:
        ConfigError: There is no such command, it needs a shell, or
            *timeout_s* makes no sense.
    """
    words = _words(command)
    bound_s = _checked(timeout_s)

    def tell(hang: Hang) -> None:
        name = clean(Path(words[0]).name)
        try:
            ended = _run(words, hang, bound_s)
        except OSError as error:
            msg = f"{name} cannot be started: {error.strerror}"
            raise HookError(
                msg, remedy="name a program of this node by its full path"
            ) from None

        if ended.status != 0:
            msg = f"{name} {_ending(ended, bound_s)}"
            raise HookError(
                msg,
                remedy="try it by hand: it gets the hang by its input, as JSON",
            )

    return tell


def webhook_hook(
    file: str | os.PathLike[str], *, timeout_s: float = 10.0
) -> Callable[[Hang], None]:
    """
    Post a message when a job hangs.

    Slack, Google Chat, Discord, and Teams (workflows) are known by their host
    names, and get the summary and the folder as a message of theirs.  Any
    other service gets this as ``text``, together with all that is known.

    Args:
        file: Holds the address in its first line, and below it headers, as
            ``Name: value``; see
            :func:`~distdebug.watching.webhook.read_address`.  It is
            read again for every message, so that the address can be changed.

        timeout_s: How long it may take until the message has arrived, in
            seconds.

    Returns:
        The hook.  It raises :class:`~distdebug.errors.HookError` if the
        message does not arrive.

    Raises:
        ConfigError: The file cannot be used, or *timeout_s* makes no sense.
    """
    bound_s = _checked(timeout_s)
    read_address(file)  # a mistake is told now, not at night
    _warn_of_readers(file)

    def tell(hang: Hang) -> None:
        try:
            address = read_address(file)
        except ConfigError as error:
            raise HookError(str(error), remedy=error.remedy) from None

        data = hang.to_dict()
        host = clean(str(data.get("host") or ""))
        place = clean(os.fspath(hang.folder), limit=400)
        where = f"{place} on {host}" if host else place
        text = f"{clean(hang.summary, limit=_MOST_SUMMARY)}\n{where}"
        post(address, message_for(address, text, data), timeout_s=bound_s)

    return tell


def _checked(timeout_s: float) -> float:
    return a_number(timeout_s, "timeout_s of a hook", least=0.01)


def _words(command: str | Sequence[str]) -> list[str]:
    remedy = "name a program; for pipes and variables, use sh -c '...'"
    if isinstance(command, str) and (found := _for_a_shell(command)):
        msg = (
            f"a command for hangs is not run by a shell, which {clean(found)} "
            "needs"
        )
        raise ConfigError(msg, remedy="sh -c '...', or put it in '...'")

    try:
        words = shlex.split(command) if isinstance(command, str) else command
        words = [os.fspath(word) for word in words]
    except (TypeError, ValueError) as error:
        msg = f"a command for hangs cannot be understood: {clean(str(error))}"
        raise ConfigError(msg, remedy=remedy) from None

    if not words or any("\0" in word for word in words):
        msg = "a command for hangs is empty, or no text"
        raise ConfigError(msg, remedy=remedy)
    if shutil.which(words[0]) is None:
        msg = f"{clean(words[0])}: there is no such command"
        raise ConfigError(msg, remedy=remedy)

    return words


def _for_a_shell(text: str) -> str:
    """
    The first operator or variable in a command; nothing if it is plain.
    """
    # Inside of "..." a shell replaces variables, and nothing else.
    plain = _QUOTED.sub(
        lambda quoted: "".join(_VARIABLE.findall(quoted[1] or "")), text
    )
    found = _OPERATOR.search(plain) or _VARIABLE.search(plain)
    return found[0] if found else ""


def _run(words: Sequence[str], hang: Hang, timeout_s: float) -> Ended:
    environment: Mapping[str, str] = {
        **os.environ,
        "DISTDEBUG_FOLDER": os.fspath(hang.folder),
        "DISTDEBUG_SUMMARY": clean(hang.summary, limit=_MOST_SUMMARY),
    }
    return run_process(
        words,
        environment=environment,
        bound=Bound(timeout_s=timeout_s, grace_s=_GRACE_S),
        data=json.dumps(hang.to_dict()).encode(),
    )


def _ending(ended: Ended, timeout_s: float) -> str:
    if ended.status is None:
        ending = f"did not end within {timeout_s:g} s"
    elif ended.status < 0:
        ending = f"was ended by signal {-ended.status}"
        with suppress(ValueError):
            ending = f"was ended by {signal.Signals(-ended.status).name}"
    else:
        ending = f"failed with exit status {ended.status}"
    said = (ended.complaint.strip() or ended.output.strip()).splitlines()
    last = clean(said[-1].decode(errors="replace")) if said else ""
    return f"{ending}: {last}" if last else ending


def _warn_of_readers(file: str | os.PathLike[str]) -> None:
    with suppress(OSError):
        if Path(file).stat().st_mode & stat.S_IROTH:
            name = clean(os.fspath(file), limit=400)
            text = "%s holds a secret and can be read by everybody; try: "
            say(logging.WARNING, text + "chmod 600", name)
