"""
What happens on a command that was understood?
"""

from __future__ import annotations

from collections.abc import Callable

from .commands import Command
from .connecting import DebugClient
from .model import Answers, Listing


__all__ = ["HELP", "obey"]

HELP = """\
list (l)                            which ranks are there, which are stopped?
attach (a) [GROUP] RANK, or #N      talk to one stopped rank, by commands of pdb
detach                              come back from there; it stays stopped
cast [GROUP] ranks(...) COMMAND     let stopped ranks obey a command of pdb
continue (c) [[GROUP] ranks(...)]   let stopped ranks go on, without breakpoints
eval [GROUP] ranks(...) EXPRESSION  ask ranks for a value, also blocked ones
stack [[GROUP] ranks(...)]          ask ranks where they are, also blocked ones
interrupt [[GROUP] ranks(...)]      stop ranks at their next line
resume [[GROUP] ranks(...)]         continue; and interrupt no more
extend [[GROUP] ranks(...)] MINUTES let stopped ranks wait longer
abort [GROUP] ranks(...)            end stopped ranks by an exception
quit (q)                            leave; ranks that are stopped stay so

ranks(3)  ranks(1,3,5)  ranks(1:10:2)  ranks(:)  ranks(pp=2, dp=(1,3), tp=2:8)"""


def obey(
    client: DebugClient, command: Command, *, wait_s: float = 5.0
) -> Answers | Listing:
    """
    Do what a command says, if it concerns ranks.

    Args:
        client: Who asks them.

        command: What to do.

        wait_s: How long to wait for ranks that run, in seconds.

    Returns:
        What they answered.

    Raises:
        DebuggerError: Nobody is selected.
    """
    ranks, group = command.ranks, command.group
    does: dict[str, Callable[[], Answers | Listing]] = {
        "list": client.list,
        "cast": lambda: client.cast(
            ranks, command.line, group=group, wait_s=wait_s
        ),
        "continue": lambda: client.cast(ranks, "detach", group=group),
        "eval": lambda: client.eval(
            ranks, command.line, group=group, wait_s=wait_s
        ),
        "stack": lambda: client.stack(ranks, group=group),
        "interrupt": lambda: client.interrupt(ranks, group=group),
        "resume": lambda: client.resume(ranks, group=group),
        "extend": lambda: client.extend(
            (command.minutes or 0) * 60, ranks, group=group
        ),
        "abort": lambda: client.abort(ranks or "ranks(:)", group=group),
    }
    return does[command.word]()
