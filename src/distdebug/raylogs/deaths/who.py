"""
Who was it that died, where, and what did it say last?
"""

from __future__ import annotations

import os

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import attrs

from ...findings import Evidence
from ..actors import KnownActor
from ..model import RaySession, WorkerLog
from .kinds import is_driver
from .last_words import LastWords
from .model import Death
from .ranks import rank_of


__all__ = ["killed_by_kernel", "known", "placed", "with_words"]


def known(
    death: Death, log: WorkerLog | None, exported: KnownActor | None
) -> Death:
    """
    Tell who somebody was that died.

    Args:
        death: The death, of which only the worker is known.

        log: The logs of the worker, if they are at hand.

        exported: What Ray exported of the actor.

    Returns:
        The same with names.
    """
    if is_driver(death.worker_id):
        return attrs.evolve(death, actor="driver", job_id=death.worker_id[:8])
    if log is not None:
        return attrs.evolve(
            death,
            actor=log.label,
            pid=log.pid,
            actor_class=log.actor_class,
            actor_name=log.actor_name,
            actor_id=log.actor_id or death.actor_id,
            job_id=log.job_id,
            node_id=death.node_id or log.session.node_id,
            ip=death.ip or log.session.ip,
            host=log.session.host
            if death.node_id in {None, log.session.node_id}
            else "",
        )
    if exported is None:
        return attrs.evolve(death, job_id=(death.actor_id or "")[24:] or None)

    return attrs.evolve(
        death,
        actor=exported.actor_repr or exported.actor_class,
        actor_class=exported.actor_class or None,
        actor_name=exported.actor_name or None,
        pid=death.pid or exported.pid or None,
        job_id=exported.actor_id[24:],
    )


def with_words(
    death: Death, log: WorkerLog | None, text: str, words: LastWords
) -> Death:
    """
    Tell what somebody said last.

    Args:
        death: The death.

        log: The logs of the worker, if they are at hand.

        text: The end of its error log.

        words: What that tells.

    Returns:
        The same with it, as far as it has to do with the death.
    """
    names = (death.actor, death.actor_name)
    death = attrs.evolve(death, rank=rank_of(names, text))
    if log is None or not (log.err or log.out):
        return death

    newest = (log.err or log.out)[-1].path
    is_telling = death.kind in {
        *("native_crash", "collective_timeout", "init_error"),
        *("exit_code", "killed_or_exited"),
    }
    crashed = words.signal is not None or death.kind == "init_error"
    frames = words.python_frames if is_telling else ()
    return attrs.evolve(
        death,
        log=newest,
        last_lines=words.lines,
        signal=words.signal if is_telling else None,
        error=words.error if is_telling else None,
        python_frames=frames,
        native_frames=words.native_frames if is_telling else (),
        evidence=(*death.evidence, *_quoted(words, newest))
        if crashed
        else death.evidence,
    )


def _quoted(words: LastWords, path: Path) -> Iterator[Evidence]:
    telling = [x for x in words.lines if "***" in x or "Fatal" in x]
    quote = words.error or next(iter(telling), None)
    if words.signal and quote is None:
        quote = f"{words.signal} received"
    if quote:
        yield Evidence(
            kind="log",
            source=os.fspath(path),
            location="near the end",
            quote=quote,
        )


def placed(death: Death, places: Mapping[str, RaySession]) -> Death:
    """
    Call the node of a death as its session is called.

    Args:
        death: The death.

        places: The sessions, by node.

    Returns:
        The same with the place.
    """
    if death.host or death.node_id is None:
        return death
    session = places.get(death.node_id)
    if session is None:
        return death
    return attrs.evolve(death, host=session.host, ip=death.ip or session.ip)


def killed_by_kernel(
    death: Death, oom_kills: Collection[tuple[str, int]]
) -> Death:
    """
    Blame the kernel for what it is known to have done.

    Args:
        death: The death.

        oom_kills: Who the kernel killed: places and numbers of processes.

    Returns:
        The same, or that death as one for want of memory.
    """
    places = ("", death.host, death.ip)
    if death.kind != "killed_or_exited" or death.pid is None:
        return death
    if not any((place, death.pid) in oom_kills for place in places):
        return death
    return attrs.evolve(death, kind="host_oom", signal="SIGKILL")
