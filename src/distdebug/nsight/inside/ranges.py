"""
Under which name does a piece of code stand in the profile?
"""

from __future__ import annotations

import functools
import inspect

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, overload

from .marker import find_marker


__all__ = ["nvtx"]

Function = TypeVar("Function", bound=Callable[..., Any])


class _Range:
    """
    A block, or a function, under a name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pops: list[Callable[[], object] | None] = []

    def __enter__(self) -> None:
        marker, pop = find_marker(), None
        with suppress(Exception):
            if marker is not None:
                marker.push(self._name)
                pop = marker.pop
        self._pops.append(pop)

    def __exit__(self, *_: object) -> None:
        pop = self._pops.pop()
        with suppress(Exception):
            if pop is not None:
                pop()

    def __call__(self, function: Function) -> Function:
        named: Function = _named(function, self._name)
        return named


@overload
def nvtx(name: str) -> _Range:
    """
    A block, or what decorates a function.
    """


@overload
def nvtx(name: Function) -> Function:
    """
    The function, decorated.
    """


def nvtx(name: Any) -> Any:
    """
    Let a function, or a block, stand in the profile under a name.

    As ``@nvtx``, ``@nvtx("forward")``, or ``with nvtx("forward"):``.  The
    range ends however the code ends.  A generator, or a function that is
    ``async``, has one range from its first step to its end, in which it may
    wait.  Where no profile can be written, such as without CUDA, nothing
    happens.

    Args:
        name: The name; or a function, which then stands under its own.

    Returns:
        What is a context manager, and a decorator that keeps the signature;
        or the function, decorated.
    """
    if isinstance(name, str):
        return _Range(name)
    return _named(name, name.__qualname__)


def _named(function: Any, name: str) -> Any:
    kinds: tuple[tuple[Callable[[Any], bool], Callable[..., Any]], ...] = (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    )
    for is_kind, wrap in kinds:
        if is_kind(function):
            return functools.wraps(function)(wrap(function, name))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Range(name):
            return function(*args, **kwargs)

    return call


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """
    A range that may end anywhere: others run while this code waits.
    """
    marker, begun = find_marker(), None
    with suppress(Exception):
        if marker is not None:
            begun = (marker.begin(name),)
    try:
        yield
    finally:
        with suppress(Exception):
            if marker is not None and begun is not None:
                marker.end(*begun)


def _coroutine(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _whole(name):
            return await function(*args, **kwargs)

    return call


def _generator(function: Any, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _whole(name):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Any, name: str) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        stream = function(*args, **kwargs)
        resume, given = stream.asend, None
        with _whole(name):
            try:
                while True:
                    try:
                        item = await resume(given)
                    except StopAsyncIteration:
                        return
                    try:
                        given = yield item
                        resume = stream.asend
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 it is passed on
                        resume, given = stream.athrow, error
            finally:
                await stream.aclose()

    return call
