"""
Merge the stacks of thousands of ranks into one tree.

Stacks are merged from their outermost frames on, so that ranks part where they
do different things.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import cached_property, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from .._lazy import late_pattern
from .._render import Block, Branch, Shown, Tree
from .._text import clean
from ..ranks import fold_ranks
from ..usercode import is_user_frame, strip_install_prefix
from .model import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    innermost_native_name,
)
from .rules import builtin_rules, is_background


if TYPE_CHECKING:
    from .parse import StackSources


_LIBRARY_VERSION = late_pattern(r"(?:-[\d.]+)?\.so(?:\.[\d.]+)?$")
_SYMBOL_SUFFIX = late_pattern(
    r"@.*$|\[abi:\w*\]| ?\[clone [^\]]*\]|\.(?:constprop|isra)\..*"
)

# The innermost frame to keep: what happens inside the communication library
# differs from rank to rank and from moment to moment.
_COMMUNICATION_FILE = late_pattern(
    r"(?:^|[/\\])torch[/\\]distributed[/\\]"
    r"(?:distributed_c10d|_functional_collectives|nn[/\\]functional)\.py$"
)
_COMMUNICATION_NAME = late_pattern(
    r"(?:c10d|gloo|torch::distributed)::|p?nccl[A-Z_]|cuda[A-Z]\w|cu[A-Z][a-z]"
    r"|nvshmem|ucp_|MPI_"
)
# Functions of the interpreter and of bindings, which are no part of a program.
_INTERPRETER_NAME = late_pattern(
    r"_?Py(?!Thread_acq|GILState|Eval_(?:Restore|Acq)|COND|M(?:UTEX|utex))_?[A-Z]\w*"
    r"|(?:cfunction|method|type|object|function|partial)"
    r"_\w*(?:call|vectorcall)\w*|slot_\w+|call_function|do_call(?:_core)?"
    r"|(?:dynamic_)?pybind11::.*|torch::detail::.*|thread_run|run_mod"
    r"|pyrun_\w+|pymain_\w+|run_eval_code_obj|(?:__)?clone3?|start_thread"
    r"|pythread_wrapper|_start|__libc_start\w*|main|\?\?|0x[0-9a-f]+"
)
# The C library has many names for one function.
_LIBC_PREFIX = late_pattern(
    r"_{1,3}(?:GI_{1,3})?(?:libc_)?(?=pthread|futex|clock_|nanosleep|sleep|e?poll"
    r"|select|read|write|recv|send|accept|connect|wait|sem_|lll_|new_sem_)"
)
_LIBC_SUFFIX = late_pattern(r"(?:64|_nocancel|_time64|_cancel)$")
_WAIT_NAME = late_pattern(
    r"futex|pthread_(?:cond|mutex)|lll_|do_futex|(?:new_)?sem_|\w*sleep"
)


@lru_cache(maxsize=1 << 14)
def normalize_frame(frame: StackFrame) -> StackFrame | None:
    """
    Remove from a frame what differs from rank to rank.

    Returns:
        ``None`` if the frame shows nothing about what the program does.
    """
    if frame.is_native:
        name = _plain_native_name(frame.name)
        if not name or _INTERPRETER_NAME.fullmatch(name):
            return None
        library = frame.filename.replace("\\", "/").rpartition("/")[2]
        return StackFrame(
            name, _LIBRARY_VERSION.sub(".so", library), 0, is_native=True
        )

    name = frame.name.rpartition(".")[2]
    filename = strip_install_prefix(frame.filename)
    if f"{filename}:{name}" in builtin_rules().roles["wrapper"]:
        return None
    return StackFrame(name, filename, frame.line)


def normalize_stack(frames: Iterable[StackFrame]) -> tuple[StackFrame, ...]:
    """
    Remove from a stack what differs between ranks that do the same.

    Args:
        frames: Innermost first.

    Returns:
        The stack, innermost first, without wrappers, addresses, and frames
        inside the communication library; not empty unless *frames* is.
    """
    known = tuple(frames)
    result: list[StackFrame] = []
    for frame in reversed(known):
        normal = normalize_frame(frame)
        if normal is None or (result and _both_wait(result[-1], normal)):
            continue
        result.append(normal)
        if _is_communication(normal):
            break
    return tuple(reversed(result)) or known[:1]


def _both_wait(outer: StackFrame, inner: StackFrame) -> bool:
    # The wait frames of the C library differ between versions and tools.
    return all(
        frame.is_native and _WAIT_NAME.match(frame.name)
        for frame in (outer, inner)
    )


def _is_communication(frame: StackFrame) -> bool:
    if frame.is_native:
        return _COMMUNICATION_NAME.match(frame.name) is not None
    return _COMMUNICATION_FILE.search(frame.filename) is not None


def _plain_native_name(name: str) -> str:
    """
    Return a native function without arguments and template parameters.
    """
    name = _SYMBOL_SUFFIX.sub("", name).strip()
    if alias := _LIBC_PREFIX.match(name):
        name = _LIBC_SUFFIX.sub("", name[alias.end() :])
    depth, result = 0, []
    for char in name.replace("operator<", "operator_").replace("->", "_"):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            result.append(char)
    plain = "".join(result).removesuffix(" const").strip()
    # A name such as "(anonymous namespace)" is only brackets.
    return plain.removeprefix("::") or name


# Pipeline stages run other layers, and replicas of a server other requests:
# they are not peers.
_PIPELINE_DIMENSIONS = ("pp",)
_REPLICA_DIMENSIONS = ("pp", "dp")
_SERVER_PREFIXES = ("sglang::", "VLLM::")

Frames = tuple[StackFrame, ...]


@attrs.frozen(kw_only=True)
class StackClass:
    """
    Processes with the same stack.

    Attributes:
        role: Their role in the job.

        frames: Their stack, innermost first, normalized.

        members: The processes, as indices into *processes* of the tree.

        ranks: Their ranks, ascending, as far as known.

        who: Their names, such as ``"0-2,4"`` or ``"pid 4711"``.
    """

    role: str
    frames: Frames
    members: tuple[int, ...]
    ranks: tuple[int, ...]
    who: str


@attrs.frozen(kw_only=True)
class StackTree(Shown):
    """
    The stacks of many processes as one tree, in columns.

    A node is a frame together with all frames outside it.  A node comes after
    its parent.

    Attributes:
        processes: The merged processes.

        frames: The frame of each node.

        parents: The parent of each node; -1 if there is none.

        members: The processes that passed through each node, as ascending
            indices into *processes*.

        own: Whether the frame of each node is user code.

        mains: The node at which the main thread of each process is; -1 if it
            has no stack.

        ends: The stacks that end at each node, as indices of processes; a
            process occurs once per thread.
    """

    processes: tuple[ProcessStacks, ...]
    frames: Frames
    parents: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    own: tuple[bool, ...]
    mains: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @cached_property
    def has_jobs(self) -> bool:
        """
        Whether the processes belong to several jobs, whose ranks have the same
        numbers.
        """
        return len({p.job for p in self.processes if p.job}) > 1

    def who(self, members: Iterable[int]) -> str:
        """
        Name processes by their ranks or pids.

        Args:
            members: Indices into *processes*.

        Returns:
            Ranks such as ``"0-2,4-7"``, and the pids of processes without a
            rank; with the name of their job if there are several jobs.
        """
        parts = []
        for known in group_by_key(members, self._job):
            names = _process_names(self.processes[m] for m in known)
            job = self._job(known[0])
            parts.append(f"{names} of {job}" if job else names)
        return "; ".join(parts)

    def _job(self, member: int) -> str:
        return self.processes[member].job if self.has_jobs else ""

    @cached_property
    def children(self) -> Mapping[int, Sequence[int]]:
        """
        The nodes below each node, and without a parent below -1.
        """
        found: dict[int, list[int]] = {
            n: [] for n in range(-1, len(self.frames))
        }
        for node, parent in enumerate(self.parents):
            found[parent].append(node)
        return found

    def chain(self, node: int) -> Sequence[int]:
        """
        Return a node and those below it, up to the first fork or end.

        Args:
            node: Its index.
        """
        found = [node]
        while len(self.children[node]) == 1 and not self.ends[node]:
            (node,) = self.children[node]
            found.append(node)
        return found

    def stack(self, node: int) -> Frames:
        """
        Return the frames that lead to a node, innermost first.

        Args:
            node: Its index.
        """
        frames = []
        while node >= 0:
            frames.append(self.frames[node])
            node = self.parents[node]
        return tuple(frames)

    def stacks(self) -> Iterator[tuple[Frames, tuple[int, ...]]]:
        """
        Yield each stack, innermost first, with the processes it is of.
        """
        for node, ends in enumerate(self.ends):
            if ends:
                yield self.stack(node), ends

    @property
    def classes(self) -> tuple[StackClass, ...]:
        """
        Processes grouped by stack, the largest group first.

        A class holds the processes of one job and role whose main threads are
        at the same place.
        """
        groups = group_by_key(
            self._with_main,
            lambda m: (self._job(m), self.processes[m].role, self.mains[m]),
        )
        groups.sort(key=len, reverse=True)
        return tuple(map(self._make_class, groups))

    @property
    def _with_main(self) -> list[int]:
        return [m for m, node in enumerate(self.mains) if node >= 0]

    def outliers(self, *, share: float = 0.2) -> tuple[StackClass, ...]:
        """
        Return the small classes that are not where most of their peers are.

        Peers have the same job, role, and pipeline stage, as far as known.
        Classes are only returned if more than half of their peers are in one
        place.

        Args:
            share: A class is small if it has at most this share of its peers,
                or one process.

        Returns:
            The small classes, the smallest first.
        """
        found: list[list[int]] = []
        for peers in group_by_key(
            self._with_main,
            lambda m: (self._job(m), _peer_key(self.processes[m])),
        ):
            classes = group_by_key(peers, self.mains.__getitem__)
            largest, total = max(map(len, classes)), len(peers)
            small = max(1, share * total) if largest > total / 2 else 0
            found += (
                c for c in classes if len(c) <= small and len(c) < largest
            )
        return tuple(map(self._make_class, sorted(found, key=len)))

    def _make_class(self, members: list[int]) -> StackClass:
        ranks = {self.processes[member].rank for member in members}
        return StackClass(
            role=self.processes[members[0]].role,
            frames=self.stack(self.mains[members[0]]),
            members=tuple(members),
            ranks=tuple(sorted(r for r in ranks if r is not None)),
            who=self.who(members),
        )

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per node at which a stack ends.
        """
        return [
            {
                "who": self.who(ends),
                "processes": len(set(ends)),
                "threads": len(ends),
                "stack": [*map(str, stack)],
            }
            for stack, ends in self.stacks()
        ]

    def to_dict(self) -> dict[str, Any]:
        """
        Return the columns as plain data, for ``json.dumps``.
        """
        return {
            "processes": [
                {"pid": p.pid, "rank": p.rank, "host": p.host, "role": p.role}
                for p in self.processes
            ],
            "nodes": [
                {
                    "name": frame.name,
                    "filename": frame.filename,
                    "line": frame.line,
                    "parent": self.parents[node],
                    "members": self.who(self.members[node]),
                    "own": self.own[node],
                }
                for node, frame in enumerate(self.frames)
            ],
        }

    def _blocks_(self) -> Iterable[Block]:
        yield Tree(to_branches(self))


def _process_names(known: Iterable[ProcessStacks]) -> str:
    processes = list(known)
    ranks = [p.rank for p in processes if p.rank is not None]
    others = [p.pid for p in processes if p.rank is None]
    parts = [fold_ranks(ranks), f"pid {fold_ranks(others)}" if others else ""]
    return ", ".join(filter(None, parts))


def _peer_key(process: ProcessStacks) -> tuple[object, ...]:
    is_server = process.command.startswith(_SERVER_PREFIXES)
    other = _REPLICA_DIMENSIONS if is_server else _PIPELINE_DIMENSIONS
    places = [(n, at) for n, at in process.coordinates if n in other]
    return process.role, tuple(sorted(places))


def merge_stacks(
    stacks: StackSources,
    *,
    threads: Literal["main", "all"] = "main",
    background: bool = False,
) -> StackTree:
    """
    Merge the stacks of processes into one tree.

    Args:
        stacks: Processes of one job, or files, folders, or a capture with
            them.

        threads: Whether to merge all threads or only the main ones.

        background: Whether to include threads that only wait for work, if all
            threads are merged.

    Returns:
        One tree, with normalized frames.
    """
    from .parse import as_stacks  # a watch in a job does not read stacks

    processes = as_stacks(stacks)
    builder = _TreeBuilder()
    mains = [-1] * len(processes)
    for member, process in enumerate(processes):
        main = process.main_thread
        for thread in process.threads:
            if threads == "main" and thread is not main:
                continue
            node = builder.add_thread(thread, background=background)
            if node >= 0:
                builder.ends[node].append(member)
                if thread is main:
                    mains[member] = node
    return builder.build(processes, tuple(mains))


class _TreeBuilder:
    """
    Builds a tree thread by thread.
    """

    def __init__(self) -> None:
        self.frames: list[StackFrame] = []
        self.parents: list[int] = []
        self.own: list[bool] = []
        self.ends: list[list[int]] = []
        self._children: dict[tuple[int, StackFrame], int] = {}
        self._nodes_by_stack: dict[Frames, int] = {}
        self._nodes_by_thread: dict[tuple[object, ...], int] = {}

    def add_thread(self, thread: ThreadStack, *, background: bool) -> int:
        """
        Add a thread; return its node, or -1 if it is left out.
        """
        frames = thread.frames or thread.native
        # Equal frames are almost always one object, and ids compare faster.
        key = (thread.is_main, thread.name, *map(id, frames))
        node = self._nodes_by_thread.get(key)
        if node is None:
            is_left_out = not frames or (
                not background and is_background(thread)
            )
            node = -1 if is_left_out else self._add_stack(frames)
            self._nodes_by_thread[key] = node
        return node

    def _add_stack(self, frames: Frames) -> int:
        if (known := self._nodes_by_stack.get(frames)) is not None:
            return known

        own = {normalize_stack((f,))[0]: is_user_frame(f) for f in frames}
        node = -1
        for frame in reversed(normalize_stack(frames)):
            below = self._children.get((node, frame))
            if below is None:
                below = len(self.frames)
                self._children[node, frame] = below
                self.frames.append(frame)
                self.parents.append(node)
                self.own.append(own.get(frame, False))
                self.ends.append([])
            node = below
        self._nodes_by_stack[frames] = node
        return node

    def build(
        self, processes: tuple[ProcessStacks, ...], mains: tuple[int, ...]
    ) -> StackTree:
        """
        Return the finished tree.
        """
        return StackTree(
            processes=processes,
            frames=tuple(self.frames),
            parents=tuple(self.parents),
            members=tuple(self._members()),
            own=tuple(self.own),
            mains=mains,
            ends=tuple(map(tuple, self.ends)),
        )

    def _members(self) -> Iterator[tuple[int, ...]]:
        above: list[list[tuple[int, ...]]] = [[] for _ in self.frames]
        found: list[tuple[int, ...]] = [()] * len(self.frames)
        for node in range(len(self.frames) - 1, -1, -1):
            parts = above[node]
            if self.ends[node]:
                parts.append(tuple(self.ends[node]))
            # Most nodes have one child, with the same members.
            if len(parts) == 1 and not self.ends[node]:
                found[node] = parts[0]
            else:
                found[node] = tuple(sorted(set().union(*parts)))
            if self.parents[node] >= 0:
                above[self.parents[node]].append(found[node])
        yield from found


T = TypeVar("T")


def group_by_key(
    items: Iterable[T], key: Callable[[T], Hashable]
) -> list[list[T]]:
    """
    Group items by key, in the order of first appearance.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


_WIDTH = 96
# Longer runs of foreign frames are folded to the first and the last.
_MOST_FOLDED = 3
_NAMES_WIDTH = 40


def to_branches(tree: StackTree) -> list[Branch]:
    """
    Convert a tree to branches for the text output.

    Returns:
        Each branch with its processes; ``*`` marks user code; the innermost
        frame comes last.
    """
    return [*_tree_branches(tree), *_stackless_branches(tree)]


def _tree_branches(tree: StackTree) -> Iterator[Branch]:
    below = tree.children
    # Stacks may be deeper than the recursion limit.
    todo = [(0, node) for node in _largest_last(tree, below[-1])]
    while todo:
        depth, node = todo.pop()
        chain = tree.chain(node)
        node = chain[-1]
        who = clean(tree.who(tree.members[node]), limit=_NAMES_WIDTH)
        parts = [*_chain_lines(tree, chain)]
        if name := native_function(tree, node):
            parts.append(f"{clean(name, limit=_WIDTH)} (native)")
        yield Branch(depth, who, parts)
        if tree.ends[node] and below[node]:
            here = clean(tree.who(tree.ends[node]), limit=_NAMES_WIDTH)
            yield Branch(depth + 1, f"{here} (here)")
        todo += (
            (depth + 1, child) for child in _largest_last(tree, below[node])
        )


def _largest_last(tree: StackTree, nodes: Sequence[int]) -> list[int]:
    # The last one pushed is drawn first.
    return sorted(nodes, key=lambda n: (len(tree.members[n]), -n))


def _chain_lines(tree: StackTree, chain: Sequence[int]) -> Iterator[str]:
    """
    Yield the frames of a chain; long runs of foreign frames are folded.
    """
    for is_own, nodes in groupby(chain, tree.own.__getitem__):
        texts = [clean(str(tree.frames[n]), limit=_WIDTH) for n in nodes]
        if is_own:
            yield from (f"* {text}" for text in texts)
        elif len(texts) > _MOST_FOLDED:
            yield from (texts[0], f"… {len(texts) - 2} more", texts[-1])
        else:
            yield from texts


def native_function(tree: StackTree, node: int) -> str:
    """
    Return the native function that all processes at a node are in.

    Args:
        node: Its index.

    Returns:
        The name as the tool printed it; ``""`` if unknown, or if there are
        several.
    """
    names = set()
    for member in tree.ends[node]:
        thread = tree.processes[member].main_thread
        # For other threads it is unknown which one ends here.
        if thread is None or not thread.native or not thread.frames:
            return ""
        is_here = tree.frames[node] == normalize_stack(thread.frames)[0]
        names.add(innermost_native_name(thread.native) if is_here else "")
    return names.pop() if len(names) == 1 else ""


def _stackless_branches(tree: StackTree) -> Iterator[Branch]:
    """
    Yield the processes without a stack, by state.
    """
    processes = tree.processes
    seen = {member for ends in tree.ends for member in ends}
    unseen = (m for m in range(len(processes)) if m not in seen)
    for members in group_by_key(unseen, lambda m: processes[m].state):
        state = processes[members[0]].state
        why = f" (state {clean(state)})" if state else ""
        who = clean(tree.who(members), limit=_NAMES_WIDTH)
        yield Branch(0, who, [f"no stack{why}"])
