"""
Which place does a process have in its job?
"""

from __future__ import annotations

from typing import Any

from ..._text import clean
from ...identity import Identity
from .evidence import Evidence
from .programs import option_number
from .scan import Process
from .scene import Claim, Scene, is_inherited
from .titles import parse_title, rank_of_title


__all__ = ["place_of"]

# Frameworks whose workers tell their place by their title, and whose
# environment is that of whoever started the server.
_TITLED = frozenset({"sglang", "vllm"})


def place_of(scene: Scene, process: Process, claim: Claim) -> dict[str, Any]:
    """
    Which place does a process have in its job, and who said so?

    Args:
        scene: What is known.

        process: A worker.

        claim: What it is.

    Returns:
        Fields of a worker.
    """
    shown = scene.shown_by(process)
    place: dict[str, Any] = {"job": clean(shown.identity.job)}
    if claim.framework in _TITLED and claim.role in {"rank", "server"}:
        return place | _by_title(process, claim)
    if claim.role != "rank":
        return place

    place |= _by_environment(scene, process, claim)
    # A rank that is known does not become better by what else is there.
    if place.get("rank") is None:
        options = _by_options(process)
        sources = [x["source"] for x in (place, options) if x.get("source")]
        place |= options | {"source": " + ".join(sources)}
    return place


def _by_title(process: Process, claim: Claim) -> dict[str, Any]:
    places = parse_title(process.text)
    if not places:
        return {}
    rank = rank_of_title(places) if claim.role == "rank" else None
    return {"coordinates": places, "rank": rank, "source": "title"}


def _by_environment(
    scene: Scene, process: Process, claim: Claim
) -> dict[str, Any]:
    shown = scene.shown_by(process)
    identity = shown.identity
    elder = scene.family.elder(process)
    # Slurm started the node's Ray, and not its actors.
    is_foreign = claim.framework == "ray" and identity.source != "torchrun"
    if is_foreign or is_inherited(scene, process, elder):
        size = identity.world_size if identity.rank is None else None
        identity = identity._replace(
            rank=None, local_rank=None, world_size=size
        )
    known = {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "local_world_size": _local_world_size(shown, identity),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": shown.source} if found else {})


def _local_world_size(shown: Evidence, identity: Identity) -> int | None:
    if identity.rank is None:
        return None

    text = shown.environ.get("LOCAL_WORLD_SIZE", "")
    if text.isascii() and text.isdigit() and len(text) < 6:
        return int(text)
    # With all tasks on one node, it does not matter how they are numbered.
    nodes = shown.environ.get("SLURM_NNODES")
    size = shown.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if identity.world_size is None:
        return None
    if (identity.source == "Slurm" and nodes == "1") or (
        identity.source == "Open MPI" and size == str(identity.world_size)
    ):
        return identity.world_size
    return None


def _by_options(process: Process) -> dict[str, Any]:
    known = {
        "rank": option_number(process.arguments, "rank"),
        "local_rank": option_number(process.arguments, "local-rank"),
        "world_size": option_number(process.arguments, "world-size"),
    }
    found = {key: value for key, value in known.items() if value is not None}
    return found | ({"source": "command line"} if found else {})
