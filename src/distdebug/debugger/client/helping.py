"""
What can be typed at the prompt, and what does it do?
"""

from __future__ import annotations


__all__ = ["HELP", "help_text"]

HELP = """\
list (l) [[GROUP] ranks(...)]       which ranks are there, which are stopped?
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
help (h) [COMMAND]                  explain a command, or ranks
quit (q)                            leave; ranks that are stopped stay so

ranks(3)  ranks(1,3,5)  ranks(1:10:2)  ranks(:)  ranks(pp=2, dp=(1,3), tp=2:8)"""

_MORE = {
    "list": """\
Many rows that are alike are shown as one; with ranks(...), each rank has its own.
#1, #2, … are the threads that are held, as of the last list: attach #2.""",
    "attach": """\
The prompt becomes that of the rank, and takes the commands of pdb: p, n, s, u, d,
w, l, b, until, !statement, …  An empty line repeats the last one.
  detach   comes back; the rank stays stopped
  q        lets the rank go on, without breakpoints, and comes back
  abort    ends the rank by an exception
Commands with ranks(...) work from there as well, and attach 3 changes the rank.
If the rank runs for long, Ctrl-C ends the waiting, and an empty line looks again.""",
    "detach": "Ctrl-D does the same.",
    "cast": """\
  cast ranks(:) p loss
  cast ranks(dp=0, tp=1:) next
  cast trainer ranks(1,3) !learning_rate = 0.1
  cast #2 where                         one thread, by its number in the list
What equals is merged, and the odd ones come first.  A rank obeys once, however often
it is named.  Ranks that are selected but not stopped are named.""",
    "continue": """\
Without ranks(...), everybody who is stopped goes on; continue #2 is for one thread.
Breakpoints that were set by commands are cleared; those in the code are not.  To keep
them, say: cast ranks(:) continue.  At the prompt of a rank, c keeps them, too.""",
    "eval": """\
  eval ranks(:) (epoch, loss.item())
  eval ranks(:) up 1: batch_index       as its caller sees it
  eval #2 batch                         in one thread that is stopped
The expression sees the variables of the innermost line of your own code, and is
computed beside it, in bounded time.  Tensors on a GPU are described, not copied.""",
    "stack": """\
Innermost line last.  Nobody is stopped by it.  It tells of the thread that works, and
of those that are stopped; of all threads: stack all, or stack ranks(0) all.  Of ranks
of this node that do not answer, or are not armed, py-spy tells it, if it may.""",
    "interrupt": """\
A rank that waits for a command is asked by cast or attach; this stops those that run.
A rank that is blocked in native code, as in a collective, stops when that returns; it
says where it is.  resume takes an interrupt back.""",
    "resume": "Takes back an interrupt of ranks that did not stop yet.",
    "extend": "Counted from now on.  Without it, a pause ends after 30 minutes.",
    "abort": "bdb.BdbQuit is raised at the line.  Mostly, this ends the whole job.",
    "quit": "To let the ranks go on, say continue before.",
}

_RANKS = """\
ranks(3)                        rank 3
ranks(1,3,5)                    these
ranks(1:10:2)                   1, 3, 5, 7, 9: a slice, as in Python
ranks(:)                        all
ranks(pp=2, dp=(1,3), tp=2:8)   by dimension; what is not named is not restricted
Of list, continue, stack, interrupt, resume, and abort, 3 is short for ranks(3).
Blanks are allowed everywhere but before the parenthesis.  What does not exist is left
out; if nobody is left, you are told who exists."""


def help_text(topic: str = "") -> str:
    """
    Explain a command.

    Args:
        topic: The command in full, or ``"ranks"``; everything, in short, if
            it is left out.

    Returns:
        Some lines.
    """
    if topic == "ranks":
        return _RANKS

    lines = [line for line in HELP.splitlines() if line.startswith(topic)]
    return "\n".join([*lines, _MORE.get(topic, "")]).strip() if topic else HELP
