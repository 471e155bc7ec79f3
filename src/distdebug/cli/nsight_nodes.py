"""
How is Ray's nsight plugin mended on every node of a job?
"""

from __future__ import annotations

import argparse

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .output import counting, print_json


if TYPE_CHECKING:
    from ..nodes.results import Engine, NodeResult


__all__ = ["add_nodes_options", "patch_everywhere"]


def add_nodes_options(parser: argparse.ArgumentParser) -> None:
    """
    Add the options that name nodes.

    Args:
        parser: Where to add them.
    """
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--slurm", metavar="JOB", help="on every node of this Slurm job"
    )
    where.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="on every node of this Ray cluster, HOST:PORT or 'auto'; it has "
        "to be restarted then",
    )
    parser.add_argument(
        "--container-name",
        metavar="NAME",
        help="with --slurm: enter this pyxis container on each node",
    )


def patch_everywhere(args: argparse.Namespace) -> int:
    """
    Print what became of the plugin on each node; 1 if one is not fine.

    Args:
        args: What was parsed.

    Returns:
        The exit status.
    """
    from ..nodes.run import run_on_nodes

    work = partial(_on_this_node, args.what, args.path)
    with counting("nodes") as tell:
        results = sorted(
            run_on_nodes(work, engine=_engine(args), tell=tell),
            key=lambda result: result.host,
        )
    if args.json:
        plain = [_plain(result) for result in results]
        print_json(f"nsight {args.what}", {"nodes": plain})
    else:
        print("\n".join(map(_line, results)))
    return int(not all(_is_done(args.what, r.value) for r in results))


def _on_this_node(what: str, path: str | None) -> dict[str, Any]:
    from ..nsight import patch as change

    calls: dict[str, Callable[[str | None], Any]] = {
        "patch": change.patch_ray_nsight,
        "status": change.ray_nsight_status,
        "revert": change.revert_ray_nsight,
    }
    plain: dict[str, Any] = calls[what](path).to_dict()
    return plain


def _engine(args: argparse.Namespace) -> Engine:
    if args.ray is not None:
        from ..nodes.ray import Ray

        return Ray(args.ray)

    from ..nodes.slurm import Slurm

    return Slurm(job=args.slurm, container_name=args.container_name)


def _is_done(what: str, value: Mapping[str, Any] | None) -> bool:
    if value is None:
        return False
    if what == "revert":
        return value["state"] in {"needs_patch", "fixed_upstream"}
    return bool(value["fine"])


def _plain(result: NodeResult) -> dict[str, Any]:
    return {
        "host": result.host,
        "status": result.status.value,
        "reason": result.reason,
        "plugin": result.value,
    }


def _line(result: NodeResult) -> str:
    value = result.value
    if value is None:
        return f"{result.host}: {result.status.value}: {result.reason}"
    old = ", agents that do not know it" if value["stale_agents"] else ""
    changed = ", changed just now" if value["changed"] else ""
    return f"{result.host}: {value['state']}{changed}{old}"
