"""
What does the page show of the stacks?
"""

from __future__ import annotations

from ....diagnosis.seen import seen_by
from ....findings import Diagnosis
from ....stacks.merge import StackTree, merge_stacks
from ...section import Section
from .branches import cut_tree
from .downloads import downloads_of
from .ends import absent_from
from .processes import culprits_of, processes_seen
from .threads import threads_of


__all__ = ["stacks_section"]


def stacks_section(diagnosis: Diagnosis) -> Section | None:
    """
    Where is every process?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The merged stacks of the main threads, and all threads of each
        process for those who ask; None if there is no stack at all.
    """
    tree = merge_stacks(processes_seen(seen_by(diagnosis)))
    if not tree.frames:
        return None

    culprits = culprits_of(diagnosis, tree)
    picture = cut_tree(tree, culprits)
    downloads = downloads_of(tree)
    return Section(
        name="stacks",
        title="Where every process is",
        summary=_summary(tree),
        values={
            "picture": picture,
            "absent": absent_from(tree),
            "downloads": tuple(downloads),
        },
        data={
            **threads_of(tree, culprits),
            "branch": picture.branch_of,
            "downloads": downloads,
        },
    )


def _summary(tree: StackTree) -> str:
    size = sum(node >= 0 for node in tree.mains)
    places = len({node for node in tree.mains if node >= 0})
    if size == 1:
        return "one process"
    if places == 1:
        return f"all {size:,} processes are at the same place"
    return f"{size:,} processes at {places:,} places"
