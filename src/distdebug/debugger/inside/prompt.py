"""
How is a thread stopped, stepped, and let go?

This is the debugger of the standard library, of every version.  It stops at the
line that asked for it, at once, so that the stop can be seen although a tracer
of somebody else is at work; and whatever fails in it, the program goes on.
"""

from __future__ import annotations

import bdb
import io
import sys
import threading
import traceback
import weakref

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from .looking import is_users
from .obeying import CommandEnded, Obeying
from .settings import DEFAULT_LIMIT_S, say
from .stops import Stop, open_stop
from .words import Words


__all__ = ["Prompt", "current_prompt", "prompts", "release_thread"]

# Control must never climb into the loops that call the user's code.
_SKIPPED = (
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

_of_thread = threading.local()
# Those of all threads, by the thread; who is here may have left.
_all: dict[int, weakref.ref[Prompt]] = {}


def current_prompt() -> Prompt:
    """
    Which debugger holds this thread, or would?

    Returns:
        The one that still steps or has breakpoints here, or a new one.
    """
    prompt: Prompt | None = getattr(_of_thread, "prompt", None)
    if prompt is None or prompt.has_left:
        prompt = _of_thread.prompt = Prompt()
        _all[threading.get_ident()] = weakref.ref(prompt)
    return prompt


def prompts() -> dict[int, Prompt]:
    """
    Which threads are stopped, stepped, or have breakpoints?

    Returns:
        Their debuggers, by the number of the thread.
    """
    found = {ident: prompt() for ident, prompt in list(_all.items())}
    return {i: p for i, p in found.items() if p and p.is_busy()}


class _Lines(io.TextIOBase):
    """
    The standard input and output of the debugger: the stop that is open.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._prompt: Prompt = weakref.proxy(prompt)

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        """
        Wait for a command.
        """
        stop = self._prompt.stop
        # Who was let go before it came here does not wait.
        if stop is None or self._prompt.is_let_go:
            return ""

        try:
            with self._prompt.obeying.may_not_end():
                return stop.read()
        except BaseException as exc:
            self._prompt.interruption = exc
            raise

    def write(self, text: str, /) -> int:
        """
        Keep some output.
        """
        if self._prompt.stop:
            self._prompt.stop.write(text)
        return len(text)


class Prompt(Words):
    """
    The debugger of one thread.
    """

    _set_stopinfo: Callable[..., None]  # of bdb, since it exists

    def __init__(self) -> None:
        lines: Any = _Lines(self)
        # Elsewhere it might be the backend that stops all threads.
        backend: Any = {"backend": "settrace"} if _HAS_BACKENDS else {}
        super().__init__(
            stdin=lines,
            stdout=lines,
            skip=_SKIPPED,
            nosigint=True,
            readrc=False,
            **backend,
        )
        self.prompt = ""
        self.stop: Stop | None = None
        self.obeying = Obeying()
        self.thread = threading.current_thread()
        self.has_left = True
        self.is_asking = False
        self.is_let_go = False
        # What a handler of signals raised while the thread was held.
        self.interruption: BaseException | None = None
        self._own_breaks: list[bdb.Breakpoint] = []
        self._new_stop: Callable[[], Stop] | None = None
        self._goes_on = False
        self._is_ready = True
        self._previous: Any = None
        self._traces: dict[FrameType, Any] = {}

    def is_busy(self) -> bool:
        """
        Whether the thread is there, and stops, or may stop by itself.
        """
        may_stop = not (self.has_left or self.is_let_go)
        # Another thread may have got the number of one that has ended.
        return self.thread.is_alive() and (self.stop is not None or may_stop)

    # -- where it starts and ends

    def halt(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at a line, now.

        Args:
            frame: The line.

            new_stop: Opens a stop.
        """
        if self.is_asking:
            return  # an expression of the user came to a breakpoint

        self._get_ready(frame, new_stop)
        # Since Python 3.13, bdb wants to know for whom it was called.
        self.enterframe = frame
        self.interaction(frame, None)
        self.enterframe = None  # type: ignore[assignment]
        if not self.has_left:
            sys.settrace(self.trace_dispatch)

    def watch(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at the next line that this thread comes to.

        Args:
            frame: Where it is.

            new_stop: Opens a stop.
        """
        self._get_ready(frame, new_stop)
        sys.settrace(self.trace_dispatch)

    def _get_ready(
        self, frame: FrameType, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Leave nothing to do but to trace, which nobody does then.
        """
        if self.is_let_go:
            self.leave()
        self._new_stop = new_stop
        tracer = sys.gettrace()
        sys.settrace(None)  # or bdb would stop in itself
        if self.has_left:
            self._previous = tracer
            self._traces = {f: f.f_trace for f in _callers(frame) if f.f_trace}
        self.has_left = self.is_let_go = False
        self._is_ready = False
        try:
            # That of pdb would let pdb.set_trace() of the program come here.
            bdb.Bdb.set_trace(self, frame)
        finally:  # a handler of signals may raise
            sys.settrace(None)
            self._is_ready = True
        # Since Python 3.13, that means the next instruction, in any module.
        self.enterframe = frame
        self._set_stopinfo(None, None)
        self.enterframe = None  # type: ignore[assignment]

    def examine(
        self, error: BaseException, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Stop where an exception was raised.

        Args:
            error: The exception.

            new_stop: Opens a stop.
        """
        if self.is_asking or error.__traceback__ is None:
            return

        self.leave()
        self._new_stop, self.is_dead = new_stop, True
        self.is_let_go = False
        self.reset()
        self.examined = error
        knows_chains = sys.version_info >= (3, 13)
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            self.interaction(
                None, error if knows_chains else error.__traceback__
            )
        finally:
            self.is_dead, self.examined = False, None
            sys.settrace(tracer)

    def let_go(self) -> Stop | None:
        """
        Let the thread go on, whatever it is doing.

        This is for other threads.  A command that is obeyed is ended, unless
        it waits outside of Python; a step does not end before the thread comes
        to its next line.

        Returns:
            The stop that ends by that.
        """
        self.is_let_go = True
        stop = self.stop
        if stop:
            stop.release()
        self.obeying.end()
        return stop

    def leave(self) -> None:
        """
        Let the thread go, as if we had never been there.
        """
        if self.stop:
            self.stop.close()
            self.stop = None
        if self.has_left:
            return

        self.has_left = True
        self.clear_all_breaks()
        for frame in _callers(sys._getframe()):  # noqa: SLF001 bdb does so
            # A method is equal to itself, but not the same.
            if frame.f_trace == self.trace_dispatch:
                frame.f_trace = self._traces.get(frame)
        self._forget_frames()
        sys.settrace(self._previous)

    def _forget_frames(self) -> None:
        """
        Keep nothing alive that the program is done with, such as tensors.
        """
        changed = getattr(self, "frame_trace_lines_opcodes", {})
        for frame, (lines, opcodes) in changed.items():
            frame.f_trace_lines, frame.f_trace_opcodes = lines, opcodes
        changed.clear()
        self._traces = {}
        self.forget()
        self._set_stopinfo(None, None, -1)
        self.botframe = self.enterframe = None  # type: ignore[assignment]

    # -- what bdb calls

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """
        Look at one event, unless we have left.
        """
        if self.is_let_go:
            self.leave()
        # What is collected while bdb turns tracing on may run code.
        if self.has_left or not self._is_ready:
            return None

        try:
            return super().trace_dispatch(frame, event, arg)
        except Exception as exc:
            if self.has_left:
                raise  # on purpose
            self._fail(exc)
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
        Ask what to do, until that is to go on.
        """
        if self.stop is None and self._new_stop:
            self.stop = self._new_stop()
            self._new_stop = partial(
                open_stop, "breakpoint", self.stop.limit_s
            )
        self._goes_on = False
        self.is_asking = True
        try:
            self._ask(frame, tb_or_exc)
        except Exception as exc:  # noqa: BLE001 told apart there
            self._fail(exc)
        except BaseException:
            self.leave()
            raise
        finally:
            self.is_asking = False
            self.interruption = None
        if self.is_aborted:
            self.is_aborted = False
            self.leave()
            msg = "aborted from the debugger"
            raise bdb.BdbQuit(msg)
        if self._goes_on or self.is_dead:
            self._go_on()

    def _ask(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        trace = getattr(tb_or_exc, "__traceback__", tb_or_exc)
        failed = [*traceback.walk_tb(trace)]
        if self.stop and failed:
            self.stop.arrive(*failed[_users_index(failed)], failed)
        elif self.stop and frame:
            self.stop.arrive(frame)
        super().interaction(frame, tb_or_exc)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """
        Which frames can be looked at, and at which of them does it begin?

        Where an exception came out of a framework, at the line that called it.
        """
        stack, index = super().get_stack(f, t)
        return stack, _users_index(stack) if self.is_dead else index

    def onecmd(self, line: str) -> bool:
        """
        Obey one line, but not for longer than the limit.
        """
        limit_s = self.stop.limit_s if self.stop else DEFAULT_LIMIT_S
        watch = threading.Timer(
            min(limit_s, threading.TIMEOUT_MAX), self.let_go
        )
        watch.name, watch.daemon = "distdebug-limit", True
        try:
            with suppress(RuntimeError):  # no more threads
                watch.start()
            with self.obeying.may_end():
                return super().onecmd(line)
        except CommandEnded:
            self.error("the command was ended")
            return False
        finally:
            watch.cancel()

    def _cmdloop(self) -> None:
        # That of pdb would not let Ctrl-C end the job.
        self.cmdloop()

    def _fail(self, error: Exception) -> None:
        """
        Leave; it was no mistake of the program, unless a handler meant it.
        """
        self.leave()
        if error is self.interruption:
            raise error
        say("the debugger failed, and lets this rank go on: %r", error)

    def _go_on(self) -> None:
        if self.stop:
            self.stop.close()
            self.stop = None
        if not self.breaks:
            self.leave()

    def _is_outermost(self, frame: FrameType) -> bool:
        return all(
            self.is_skipped_module(f.f_globals.get("__name__", ""))
            for f in _callers(frame.f_back)
        )

    def set_continue(self) -> None:
        """
        Go on to the next breakpoint.
        """
        # That of bdb would end tracers that are not ours.
        self._goes_on = True
        self._set_stopinfo(self.botframe, None, -1)

    def bp_commands(self, frame: FrameType) -> bool:
        """
        Obey the commands of a breakpoint when it has become a stop.
        """
        del frame
        number = getattr(self, "currentbp", 0)
        self.currentbp = 0
        self.cmdqueue += getattr(self, "commands", {}).get(number, [])
        return True

    # -- breakpoints of this thread alone, which bdb shares among all

    def _load_breaks(self) -> None:
        """
        Leave the breakpoints of other threads to them.
        """

    def set_break(self, filename: str, lineno: int, *args: Any) -> str | None:
        """
        Stop whenever this thread comes to a line.
        """
        problem = super().set_break(filename, lineno, *args)
        if not problem:
            line = self.canonic(filename), lineno
            self._own_breaks.append(bdb.Breakpoint.bplist[line][-1])
        return problem

    def clear_all_breaks(self) -> None:
        """
        Clear the breakpoints that were set here.
        """
        for own in self._own_breaks:
            if own in bdb.Breakpoint.bpbynumber:
                own.deleteMe()
        self._own_breaks.clear()
        self.breaks = {}

    def break_here(self, frame: FrameType) -> bool:
        """
        Whether a breakpoint of this thread is at a line.
        """
        try:
            return bool(super().break_here(frame))
        except KeyError:  # another thread has cleared it
            there = bdb.Breakpoint.bplist
            kept = {
                file: [line for line in lines if (file, line) in there]
                for file, lines in self.breaks.items()
            }
            self.breaks = {
                file: lines for file, lines in kept.items() if lines
            }
            return False


def _users_index(stack: Sequence[tuple[FrameType, int]]) -> int:
    """
    Which is the innermost frame of the user's own, or of all?
    """
    return next(
        (n for n in reversed(range(len(stack))) if is_users(stack[n][0])),
        len(stack) - 1,
    )


def _callers(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def release_thread() -> None:
    """
    End what holds this thread, or would stop it again.

    After a fork, the other threads do not exist.
    """
    prompt = getattr(_of_thread, "prompt", None)
    if prompt is not None:
        prompt.leave()


_HAS_BACKENDS = sys.version_info >= (3, 14)
