"""
Debugger of one thread, based on pdb: stop, step, examine, and release.

It uses the pdb of each Python version.  It stops at the requested line at
once, so that a client sees the stop even with another tracer at work.  If the
debugger fails, the program continues.
"""

from __future__ import annotations

import bdb
import ctypes
import io
import linecache
import os
import pdb  # noqa: T100 this is a debugger
import pprint
import re
import sys
import threading
import time
import traceback
import weakref

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any

from ..._in_job import OwnThread, stacks_of_threads
from .frames import (
    failed_stacks,
    from_user_frame,
    value_text,
)
from .interruption import CommandEnded, InterruptibleCommand
from .settings import DEFAULT_LIMIT_S, log_warning
from .stops import Stop


# Code that may start on a line without a def, class, or lambda.
_ANY_FIRST_LINE = frozenset(
    {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
)
_DEFINITION = re.compile(r"\s*(?:@|async\s|def\s|class\s)|.*\blambda\b")


def is_source_missing(filename: str) -> bool:
    """
    Return whether the source of a file is unknown here.

    Args:
        filename: The file name in the code object.
    """
    if filename.startswith("<") or linecache.cache.get(filename):
        return False

    return not (os.path.exists(filename) or linecache.getlines(filename))  # noqa: PTH110 it may be any text


def missing_files() -> list[str]:
    """
    Return the source files of running code that are missing here, sorted.
    """
    names = {code.co_filename for code in _running_code()}
    return sorted(name for name in names if is_source_missing(name))


def add_source(filename: str, text: str) -> str:
    """
    Store the source of a missing file, as sent by a client.

    Args:
        filename: The file name in the code object.

    Returns:
        ``""``, or why the source was rejected.
    """
    if filename not in missing_files():
        return "no code that runs here misses this file"

    lines = text.splitlines(keepends=True)
    for code in _running_code():
        first = code.co_firstlineno
        if code.co_filename != filename or code.co_name in _ANY_FIRST_LINE:
            continue
        # Another version of the file would show wrong lines.
        if not (first <= len(lines) and _DEFINITION.match(lines[first - 1])):
            return f"line {first} is not where {code.co_name} begins"

    # Without a modification time, linecache does not check the file.
    linecache.cache[filename] = (len(text), None, lines, filename)
    return ""


def _running_code() -> Iterator[CodeType]:
    """
    Yield the code objects of running frames, and of frames that have failed.
    """
    current = stacks_of_threads()
    for stack in (*failed_stacks.copy().values(), *current.values()):
        yield from (frame.f_code for frame, _ in stack)


# About a second.
_MAX_TRIES = 1000


def set_tracer(tracer: Any) -> None:
    """
    Set the trace function of this thread.
    """
    retry_tracing(sys.settrace, tracer)


def retry_tracing(install: Callable[..., object], *args: Any) -> None:
    """
    Call *install* again while another thread installs a trace function.

    Python 3.11 raises RuntimeError then (gh-98257); the program would get it.
    """
    for _ in range(_MAX_TRIES):
        try:
            install(*args)
        except RuntimeError:
            time.sleep(0.001)
        else:
            return
    install(*args)


_STEP_COMMANDS = frozenset(
    {"s", "step", "n", "next", "r", "return", "unt", "until", "j", "jump"}
    | {"debug", "run", "restart"}
)

_MAX_CHAIN = 100  # exceptions of a chain
# Code may catch every exception, also the one that should end it.
_RETRY_S = 1.0


class PromptCommands(pdb.Pdb):
    """
    The pdb commands, adapted to work without a terminal.
    """

    is_post_mortem = False
    is_aborted = False
    examined: BaseException | None = None

    def onecmd(self, line: str) -> bool:
        """
        Run one command; reject steps in a post mortem, where nothing runs.
        """
        word = line.split(maxsplit=1)[0] if line.split() else ""
        if self.is_post_mortem and word in _STEP_COMMANDS:
            self.error(
                f"{word}: this is post mortem, nothing runs here; "
                "continue lets the exception go on"
            )
            return False

        try:
            return super().onecmd(line)
        except Exception as exc:  # noqa: BLE001 the thread must stay stopped
            self.error(f"{type(exc).__name__}: {exc}")
            return False

    def default(self, line: str) -> None:
        """
        Execute a statement in the current frame.
        """
        super().default(line)
        _write_back_locals(self.curframe)

    def lookupmodule(self, filename: str) -> str | None:
        """
        Find a file named in a command, including files that a client has sent.
        """
        if linecache.cache.get(filename):
            return filename

        return super().lookupmodule(filename)

    def checkline(self, filename: str, lineno: int, *args: Any) -> Any:
        """
        Check that a line can have a breakpoint.
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
        Report a missing source file; return whether it is missing.
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
        log_warning("this rank is aborted from the debugger")
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
        self._show(arg, partial(value_text, form=pprint.pformat))

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

        # do_debug of pdb steps into its own code afterwards, and handles Ctrl-C.
        inner = PromptCommands(
            stdin=self.stdin, stdout=self.stdout, nosigint=True, readrc=False
        )
        inner.prompt = ""
        tracer = sys.gettrace()
        set_tracer(None)
        names = self.curframe.f_globals, self.curframe.f_locals
        self.message("entering the code; c or q runs it to its end")
        try:
            sys.call_tracing(inner.run, (arg, *names))
        finally:
            set_tracer(tracer)
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

        chain = _exception_chain(self.examined)
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
        Print the address of the pdb documentation.
        """
        self.message("see https://docs.python.org/3/library/pdb.html")


def _exception_chain(error: BaseException | None) -> list[BaseException]:
    """
    Return the causes and contexts of an exception, the first one first.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain and len(chain) < _MAX_CHAIN:
        if error.__traceback__:
            chain.append(error)
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return chain[::-1]


def _write_back_locals(frame: FrameType | None) -> None:
    """
    Write assigned local variables back to the frame.

    Before Python 3.13, assignments go to a copy of them.
    """
    if sys.version_info < (3, 13) and frame is not None:
        ctypes.pythonapi.PyFrame_LocalsToFast(
            ctypes.py_object(frame), ctypes.c_int(0)
        )


# Stepping must never enter the loops that call the user's code.
_SKIPPED_MODULES = (
    "distdebug",
    "distdebug.debugger",
    "distdebug.debugger.*",
    "asyncio.*",
    "concurrent.futures.*",
    "contextlib",
    "importlib._bootstrap*",
    "monarch.*",
    "multiprocessing.*",
    "ray.*",
    "runpy",
    "selectors",
    "threading",
    "torch.utils.data.*",
)

_thread_local = threading.local()
# The debuggers of all threads, by thread ID; some may have left.
_prompts: dict[int, weakref.ref[Prompt]] = {}


def current_prompt() -> Prompt:
    """
    Return the debugger of this thread; create one if it has left.
    """
    prompt: Prompt | None = getattr(_thread_local, "prompt", None)
    if prompt is None or prompt.has_left:
        prompt = _thread_local.prompt = Prompt()
        _prompts[threading.get_ident()] = weakref.ref(prompt)
    return prompt


def prompts() -> dict[int, Prompt]:
    """
    Return the debuggers that hold a thread, or may stop it, by thread ID.
    """
    found = {ident: prompt() for ident, prompt in list(_prompts.items())}
    return {i: p for i, p in found.items() if p and p.is_busy()}


class _StopStream(io.TextIOBase):
    """
    The input and output of the debugger: the current stop.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._prompt: Prompt = weakref.proxy(prompt)

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        """
        Wait for a command.
        """
        stop = self._prompt.stop
        # A thread that was released before does not wait.
        if stop is None or self._prompt.is_released:
            return ""

        try:
            with self._prompt.command_guard.protected():
                return stop.read()
        except BaseException as exc:
            self._prompt.interruption = exc
            raise

    def write(self, text: str, /) -> int:
        """
        Keep output for the client.
        """
        if self._prompt.stop:
            self._prompt.stop.write(text)
        return len(text)


class Prompt(PromptCommands):
    """
    The debugger of one thread.
    """

    _set_stopinfo: Callable[..., None]  # in every version of bdb

    def __init__(self) -> None:
        lines: Any = _StopStream(self)
        # The other backend, sys.monitoring, would affect all threads.
        backend: Any = {"backend": "settrace"} if _HAS_BACKENDS else {}
        super().__init__(
            stdin=lines,
            stdout=lines,
            skip=_SKIPPED_MODULES,
            nosigint=True,
            readrc=False,
            **backend,
        )
        self.prompt = ""
        self.stop: Stop | None = None
        self.command_guard = InterruptibleCommand()
        self.thread = threading.current_thread()
        self.has_left = True
        self.is_interacting = False
        self.is_released = False
        # The exception of a signal handler, raised during a stop.
        self.interruption: BaseException | None = None
        self._own_breaks: list[bdb.Breakpoint] = []
        self._new_stop: Callable[[], Stop] | None = None
        self._continues = False
        self._is_set_up = True
        self._previous_tracer: Any = None
        self._frame_traces: dict[FrameType, Any] = {}

    def is_busy(self) -> bool:
        """
        Return whether the thread lives, and is stopped or may stop.
        """
        may_stop = not (self.has_left or self.is_released)
        # A new thread may have the ID of one that has ended.
        return self.thread.is_alive() and (self.stop is not None or may_stop)

    # -- where it starts and ends

    def halt(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at a line, now.

        Args:
            frame: The frame of the line.

            new_stop: Creates the stop.
        """
        if self.is_interacting:
            return  # a typed expression reached a breakpoint

        self._start_tracing(frame, new_stop)
        # Since Python 3.13, bdb needs the frame that called it.
        self.enterframe = frame
        self.interaction(frame, None)
        self.enterframe = None  # type: ignore[assignment]
        if not self.has_left:
            set_tracer(self.trace_dispatch)

    def watch(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at the next line that this thread reaches.

        Args:
            frame: The current frame.

            new_stop: Creates the stop.
        """
        self._start_tracing(frame, new_stop)
        set_tracer(self.trace_dispatch)

    def _start_tracing(
        self, frame: FrameType, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Prepare bdb for tracing; the caller then installs the trace function.
        """
        if self.is_released:
            self.leave()
        self._new_stop = new_stop
        tracer = sys.gettrace()
        set_tracer(None)  # or bdb would stop in its own code
        if self.has_left:
            self._previous_tracer = tracer
            self._frame_traces = {
                f: f.f_trace for f in _frame_and_callers(frame) if f.f_trace
            }
        self.has_left = self.is_released = False
        self._is_set_up = False
        try:
            # set_trace of pdb would redirect pdb.set_trace() of the program here.
            retry_tracing(bdb.Bdb.set_trace, self, frame)
        finally:  # a signal handler may raise
            set_tracer(None)
            self._is_set_up = True
        # Since Python 3.13, set_trace stops at the next instruction, in any module.
        self.enterframe = frame
        self._set_stopinfo(None, None)
        self.enterframe = None  # type: ignore[assignment]

    def examine(
        self, error: BaseException, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Stop where an exception was raised.

        Args:
            new_stop: Creates the stop.
        """
        if self.is_interacting or error.__traceback__ is None:
            return

        self.leave()
        self._new_stop, self.is_post_mortem = new_stop, True
        self.is_released = False
        self.reset()
        self.examined = error
        has_chains = sys.version_info >= (3, 13)
        tracer = sys.gettrace()
        set_tracer(None)
        try:
            self.interaction(
                None, error if has_chains else error.__traceback__
            )
        finally:
            self.is_post_mortem, self.examined = False, None
            set_tracer(tracer)

    def release(self) -> Stop | None:
        """
        Let the thread continue, whatever it does; called by other threads.

        A running command is ended, unless it waits in native code.  A step
        ends when the thread reaches its next line.

        Returns:
            The stop that ends.
        """
        self.is_released = True
        stop = self.stop
        if stop:
            stop.release()
        self.command_guard.end()
        return stop

    def leave(self) -> None:
        """
        Let the thread continue, and remove all traces of the debugger.
        """
        self._close_stop()
        if self.has_left:
            return

        self.has_left = True
        self.clear_all_breaks()
        for frame in _frame_and_callers(sys._getframe()):  # noqa: SLF001 bdb does so
            # Bound methods are equal, but not identical.
            if frame.f_trace == self.trace_dispatch:
                frame.f_trace = self._frame_traces.get(frame)
        self._forget_frames()
        set_tracer(self._previous_tracer)

    def _forget_frames(self) -> None:
        """
        Drop references to frames, which keep tensors alive.
        """
        changed = getattr(self, "frame_trace_lines_opcodes", {})
        for frame, (lines, opcodes) in changed.items():
            frame.f_trace_lines, frame.f_trace_opcodes = lines, opcodes
        changed.clear()
        self._frame_traces = {}
        self.forget()
        self._set_stopinfo(None, None, -1)
        self.botframe = self.enterframe = None  # type: ignore[assignment]

    # -- what bdb calls

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """
        Handle a trace event, unless the debugger has left.
        """
        if self.is_released:
            self.leave()
        # Garbage collection may run code while bdb starts tracing.
        if self.has_left or not self._is_set_up:
            return None

        try:
            return super().trace_dispatch(frame, event, arg)
        except Exception as exc:
            if self.has_left:
                raise  # raised after leaving, on purpose
            self._leave_after_error(exc)
            return None

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """
        Stop at the end of a function; leave at the end of the user's code.
        """
        super().user_return(frame, return_value)
        if self._is_outermost(frame):
            self.leave()

    def interaction(
        self,
        frame: FrameType | None,
        tb_or_exc: TracebackType | BaseException | None,
    ) -> None:
        """
        Run commands until one lets the thread continue.
        """
        if self.stop is None and self._new_stop:
            self.stop = self._new_stop()
            self._new_stop = partial(Stop, "breakpoint", self.stop.limit_s)
        self._continues = False
        self.is_interacting = True
        try:
            self._run_interaction(frame, tb_or_exc)
        except Exception as exc:  # noqa: BLE001 handled there
            self._leave_after_error(exc)
        except BaseException:
            self.leave()
            raise
        finally:
            self.is_interacting = False
            self.interruption = None
        if self.is_aborted:
            self.is_aborted = False
            self.leave()
            msg = "aborted from the debugger"
            raise bdb.BdbQuit(msg)
        if self._continues or self.is_post_mortem:
            self._close_stop()
            if not self.breaks:
                self.leave()

    def _run_interaction(
        self, frame: FrameType | None, tb_or_exc: Any
    ) -> None:
        trace = getattr(tb_or_exc, "__traceback__", tb_or_exc)
        failed = [*traceback.walk_tb(trace)]
        if self.stop and failed:
            innermost_first = failed[::-1]
            place = from_user_frame(innermost_first)[0]
            self.stop.set_place(*place, innermost_first)
        elif self.stop and frame:
            self.stop.set_place(frame)
        super().interaction(frame, tb_or_exc)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """
        Return the frames to inspect, and the index of the first one to show.

        After an exception inside a framework, that is the user's line that
        called it.
        """
        stack, index = super().get_stack(f, t)
        if self.is_post_mortem:
            index = len(from_user_frame(stack[::-1])) - 1
        return stack, index

    def onecmd(self, line: str) -> bool:
        """
        Run one command, within the time limit of the stop.
        """
        limit_s = self.stop.limit_s if self.stop else DEFAULT_LIMIT_S
        has_ended = threading.Event()
        limiter = OwnThread(
            partial(self._release_after, limit_s, has_ended), "distdebug-limit"
        )
        try:
            with suppress(RuntimeError):  # no more threads
                limiter.start()
            return self.command_guard.run(partial(super().onecmd, line))
        except CommandEnded:
            self.error("the command was ended")
            return False
        finally:
            has_ended.set()

    def _release_after(
        self, limit_s: float, has_ended: threading.Event
    ) -> None:
        """
        Release the thread when the limit is over, until its command ends.
        """
        if has_ended.wait(min(limit_s, threading.TIMEOUT_MAX)):
            return

        stop = self.release()
        if stop and not has_ended.wait(_RETRY_S):
            stop.report_overrun()
        while not has_ended.wait(_RETRY_S):
            self.release()

    def _cmdloop(self) -> None:
        # _cmdloop of pdb would keep Ctrl-C from ending the job.
        self.cmdloop()

    def _leave_after_error(self, error: Exception) -> None:
        """
        Leave, and log the error, or raise it if a signal handler raised it.
        """
        self.leave()
        if error is self.interruption:
            raise error
        log_warning("the debugger failed, and lets this rank go on: %r", error)

    def _close_stop(self) -> None:
        if self.stop:
            self.stop.close()
            self.stop = None

    def _is_outermost(self, frame: FrameType) -> bool:
        return all(
            self.is_skipped_module(f.f_globals.get("__name__", ""))
            for f in _frame_and_callers(frame.f_back)
        )

    def set_continue(self) -> None:
        """
        Continue to the next breakpoint.
        """
        # set_continue of bdb would remove tracers of others.
        self._continues = True
        self._set_stopinfo(self.botframe, None, -1)

    def bp_commands(self, frame: FrameType) -> bool:
        """
        Run the commands of a breakpoint once the stop exists.
        """
        del frame
        number = getattr(self, "currentbp", 0)
        self.currentbp = 0
        self.cmdqueue += getattr(self, "commands", {}).get(number, [])
        return True

    # -- breakpoints of this thread; bdb shares them among all threads

    def _load_breaks(self) -> None:
        """
        Ignore the breakpoints of other threads.
        """

    def set_break(self, filename: str, lineno: int, *args: Any) -> str | None:
        """
        Set a breakpoint of this thread.
        """
        problem = super().set_break(filename, lineno, *args)
        if not problem:
            line = self.canonic(filename), lineno
            self._own_breaks.append(bdb.Breakpoint.bplist[line][-1])
        return problem

    def clear_all_breaks(self) -> None:
        """
        Clear the breakpoints of this thread.
        """
        for own in self._own_breaks:
            if own in bdb.Breakpoint.bpbynumber:
                own.deleteMe()
        self._own_breaks.clear()
        self.breaks = {}

    def break_here(self, frame: FrameType) -> bool:
        """
        Return whether this thread has a breakpoint at a line.
        """
        try:
            return bool(super().break_here(frame))
        except KeyError:  # another thread has cleared it
            existing = bdb.Breakpoint.bplist
            self.breaks = {
                file: kept
                for file, lines in self.breaks.items()
                if (kept := [x for x in lines if (file, x) in existing])
            }
            return False


def _frame_and_callers(frame: FrameType | None) -> list[FrameType]:
    if frame is None:
        return []

    return [caller for caller, _ in traceback.walk_stack(frame)]


def release_thread() -> None:
    """
    Stop debugging this thread, and clear its breakpoints.

    After a fork, no other thread exists.
    """
    prompt = getattr(_thread_local, "prompt", None)
    if prompt is not None:
        prompt.leave()


_HAS_BACKENDS = sys.version_info >= (3, 14)
