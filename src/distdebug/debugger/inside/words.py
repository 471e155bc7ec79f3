"""
Which words does a stopped thread obey, where nobody sits at a terminal?

Those of the debugger of the standard library; only what would touch a terminal,
end the job, or wait for a device is replaced.
"""

from __future__ import annotations

import ctypes
import linecache
import pdb  # noqa: T100 this is what it is for
import sys

from collections.abc import Callable
from types import FrameType
from typing import Any

from .settings import say
from .sources import is_source_missing
from .values import pretty_text, value_text


__all__ = ["Words"]

_STEPS = frozenset(
    {"s", "step", "n", "next", "r", "return", "unt", "until", "j", "jump"}
    | {"debug", "run", "restart"}
)

_MOST = 100  # exceptions of a chain


class Words(pdb.Pdb):
    """
    A debugger that needs no terminal.
    """

    is_dead = False
    is_aborted = False
    examined: BaseException | None = None

    def onecmd(self, line: str) -> bool:
        """
        Obey one line; but step only where something runs.
        """
        word = line.split(maxsplit=1)[0] if line.split() else ""
        if self.is_dead and word in _STEPS:
            self.error(
                f"{word}: this is post mortem, nothing runs here; "
                "continue lets the exception go on"
            )
            return False

        try:
            return super().onecmd(line)
        except Exception as exc:  # noqa: BLE001 nobody shall be let go by it
            self.error(f"{type(exc).__name__}: {exc}")
            return False

    def default(self, line: str) -> None:
        """
        Execute a statement in the frame that is looked at.
        """
        super().default(line)
        _write_back(self.curframe)

    def lookupmodule(self, filename: str) -> str | None:
        """
        Find a file that is named in a command, also one that a client sent.
        """
        if linecache.cache.get(filename):
            return filename

        return super().lookupmodule(filename)

    def checkline(self, filename: str, lineno: int, *args: Any) -> Any:
        """
        Find out whether there can be a breakpoint at a line.
        """
        if self._is_missing(filename):
            return 0
        count = len(linecache.getlines(filename))
        if 0 < count < lineno:
            self.error(f"{filename} has {count} lines, and no line {lineno}")
            return 0
        return super().checkline(filename, lineno, *args)

    def _is_missing(self, filename: str) -> bool:
        """
        Say why lines of a file are not known, if they are not.
        """
        if not is_source_missing(filename):
            return False

        self.error(
            f"{filename} is not on this node, and no client has sent it: "
            "if dbg is started in its folder, list and breakpoints work after "
            "the command list of that"
        )
        return True

    def do_list(self, arg: str) -> Any:
        """l(ist) [first[, last] | .]

        List the source around the line.
        """
        if not self._is_missing(self._file()):
            return super().do_list(arg)
        return None

    def do_longlist(self, arg: str) -> Any:
        """ll | longlist

        List the whole function.
        """
        if not self._is_missing(self._file()):
            return super().do_longlist(arg)
        return None

    do_l, do_ll = do_list, do_longlist

    def _file(self) -> str:
        return self.curframe.f_code.co_filename if self.curframe else ""

    def do_quit(self, arg: str) -> bool:
        """q(uit) | exit | EOF

        Detach: clear the breakpoints and let the program go on.  To end it,
        say abort.
        """
        del arg
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_detach = do_quit  # noqa: N815 pdb's name

    def do_abort(self, arg: str) -> bool:
        """abort

        End the program with bdb.BdbQuit, raised at the line where it is.
        """
        del arg
        say("this rank is aborted from the debugger")
        self.is_aborted = True
        self.clear_all_breaks()
        self.set_continue()
        return True

    def do_p(self, arg: str) -> None:
        """p expression

        Print the value of the expression.
        """
        self._show(arg, value_text)

    def do_pp(self, arg: str) -> None:
        """pp expression

        Pretty-print the value of the expression.
        """
        self._show(arg, pretty_text)

    def _show(self, arg: str, text: Callable[[object], str]) -> None:
        try:
            value = self._getval(arg)
        except BaseException:  # noqa: BLE001 pdb has shown it
            return

        try:
            self.message(text(value))
        except Exception as exc:  # noqa: BLE001 a broken repr
            self.error(f"{type(exc).__name__}: {exc}")

    def do_clear(self, arg: str) -> None:
        """cl(ear) [filename:lineno | bpnumber ...]

        Clear these breakpoints; without an argument, all of them.
        """
        if arg:
            super().do_clear(arg)
        else:
            self.clear_all_breaks()
            self.message("all breakpoints are cleared")

    do_cl = do_clear

    def do_debug(self, arg: str) -> None:
        """debug code

        Step through code that is executed in the frame that is looked at.
        """
        if self.curframe is None:
            return

        # That of pdb steps in its own code afterwards, and handles Ctrl-C.
        inner = Words(
            stdin=self.stdin, stdout=self.stdout, nosigint=True, readrc=False
        )
        inner.prompt = ""
        tracer = sys.gettrace()
        sys.settrace(None)
        names = self.curframe.f_globals, self.curframe.f_locals
        self.message("entering the code; c or q runs it to its end")
        try:
            sys.call_tracing(inner.run, (arg, *names))
        finally:
            sys.settrace(tracer)
        if inner.is_aborted:
            self.error("abort ends the program outside of debug only")
        self.message("left the code")

    def do_exceptions(self, arg: str) -> None:
        """exceptions [number]

        List the exceptions that led to this one, or go to one of them.
        """
        if sys.version_info >= (3, 13):
            super().do_exceptions(arg)
            return

        chain = _chain_of(self.examined)
        if not arg:
            for number, error in enumerate(chain):
                self.message(f"{number:3} {error!r:.200}")
        elif arg.isdecimal() and int(arg) < len(chain):
            self.setup(None, chain[int(arg)].__traceback__)
            self.print_stack_entry(self.stack[self.curindex])
        else:
            self.error("no exception has that number")

    def do_interact(self, arg: str) -> None:
        """interact

        Not here: there is no terminal.
        """
        del arg
        self.error("there is no terminal here: type statements one by one")

    def do_run(self, arg: str) -> None:
        """run

        Not here: one rank of a job cannot be started again.
        """
        del arg
        self.error("one rank of a job cannot be started again")

    do_restart = do_run

    def help_pdb(self) -> None:
        """
        Name where the commands are explained.
        """
        self.message("see https://docs.python.org/3/library/pdb.html")


def _chain_of(error: BaseException | None) -> list[BaseException]:
    """
    The exceptions for which this one was raised, the first one first.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain and len(chain) < _MOST:
        if error.__traceback__:
            chain.append(error)
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return chain[::-1]


def _write_back(frame: FrameType | None) -> None:
    """
    Let variables of a function that were assigned here be assigned there.

    Before Python 3.13 what is assigned goes into a copy of them.
    """
    if sys.version_info < (3, 13) and frame is not None:
        ctypes.pythonapi.PyFrame_LocalsToFast(
            ctypes.py_object(frame), ctypes.c_int(0)
        )
