"""
Where are thousands of ranks, on one page?

Stacks are merged from their outermost frames on, so that ranks part where they
do different things.
"""

from __future__ import annotations

import re
import sys

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

import attrs

from .._render import Block, Branch, Shown, Tree
from .._text import clean
from ..ranks import fold_ranks
from ..usercode import is_framework
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import is_background
from .places import native_name


_INSTALLED = re.compile(
    r"\A.*[/\\](?:site-packages|dist-packages|lib/python3(?:\.\d+)?t?)[/\\]"
)
_LIBRARY_VERSION = re.compile(r"(?:-[\d.]+)?\.so(?:\.[\d.]+)?$")
_TAGS = re.compile(
    r"@.*$|\[abi:\w*\]| ?\[clone [^\]]*\]|\.(?:constprop|isra)\..*"
)

# What wraps a call, and is no place in a program.
_WRAPPERS = {
    "_call_impl": "torch/nn/modules/module.py",
    "_wrapped_call_impl": "torch/nn/modules/module.py",
    "wrapper": "torch/distributed/c10d_logger.py",
    "decorate_context": "torch/utils/_contextlib.py",
    "_fn": "torch/_dynamo/eval_frame.py",
    "wrapped_fn": "deepspeed/utils/nvtx.py",
    "log_wrapper": "deepspeed/comm/comm.py",
    "_resume_span": "ray/util/tracing/tracing_helper.py",
    "auto_init_wrapper": "ray/_private/auto_init_hook.py",
    "inner": "contextlib.py",
    "_run_code": "<frozen runpy>",
    "_run_module_as_main": "<frozen runpy>",
}
_OTHER_WRAPPERS = {
    ("wrapper", "ray/_private/client_mode_hook.py"),
    (
        "wrapper",
        "torch/distributed/elastic/multiprocessing/errors/__init__.py",
    ),
    ("_run_code", "runpy.py"),
    ("_run_module_as_main", "runpy.py"),
}

# The innermost frame that is kept: what the library for communication does
# inside differs from rank to rank, and from moment to moment.
_CUT_FILE = re.compile(
    r"(?:^|[/\\])torch[/\\]distributed[/\\]"
    r"(?:distributed_c10d|_functional_collectives|nn[/\\]functional)\.py$"
)
_CUT_NAME = re.compile(
    r"(?:c10d|gloo|torch::distributed)::|p?nccl[A-Z_]|cuda[A-Z]\w|cu[A-Z][a-z]"
    r"|nvshmem|ucp_|MPI_"
)
# The machinery of the interpreter and of bindings says nothing.
_MACHINERY = re.compile(
    r"_?Py(?!Thread_acq|GILState|Eval_(?:Restore|Acq)|COND|M(?:UTEX|utex))_?[A-Z]\w*"
    r"|(?:cfunction|method|type|object|function|partial)"
    r"_\w*(?:call|vectorcall)\w*|slot_\w+|call_function|do_call(?:_core)?"
    r"|(?:dynamic_)?pybind11::.*|torch::detail::.*|thread_run|run_mod"
    r"|pyrun_\w+|pymain_\w+|run_eval_code_obj|(?:__)?clone3?|start_thread"
    r"|pythread_wrapper|_start|__libc_start\w*|main|\?\?|0x[0-9a-f]+"
)
# One function of the C library has many names.
_ALIAS = re.compile(
    r"_{1,3}(?:GI_{1,3})?(?:libc_)?(?=pthread|futex|clock_|nanosleep|sleep|e?poll"
    r"|select|read|write|recv|send|accept|connect|wait|sem_|lll_|new_sem_)"
)
_VARIANT = re.compile(r"(?:64|_nocancel|_time64|_cancel)$")
_WAITS = re.compile(
    r"futex|pthread_(?:cond|mutex)|lll_|do_futex|(?:new_)?sem_|\w*sleep"
)
# Packages whose lines no user of a job changes, as py-spy abbreviates them.
_PACKAGES = frozenset(sys.stdlib_module_names) | {
    "accelerate",
    "deepspeed",
    "filelock",
    "grpc",
    "lightning",
    "numpy",
    "pytorch_lightning",
    "ray",
    "requests",
    "torch",
    "torchdata",
    "tqdm",
    "transformers",
    "triton",
    "urllib3",
    "zmq",
}


@lru_cache(maxsize=1 << 14)
def normal_frame(frame: StackFrame) -> StackFrame | None:
    """
    How does this frame look on every rank?

    Args:
        frame: A frame, as a tool told it.

    Returns:
        The frame without what differs from rank to rank; ``None`` if it says
        nothing about what the program does.
    """
    if frame.is_native:
        name = _native_name(frame.name)
        if not name or _MACHINERY.fullmatch(name):
            return None
        library = frame.filename.replace("\\", "/").rpartition("/")[2]
        return StackFrame(
            name, _LIBRARY_VERSION.sub(".so", library), 0, is_native=True
        )

    name = frame.name.rpartition(".")[2]
    filename = _INSTALLED.sub("", frame.filename)
    if filename == _WRAPPERS.get(name) or (name, filename) in _OTHER_WRAPPERS:
        return None
    return StackFrame(name, filename, frame.line)


def normal_frames(frames: Iterable[StackFrame]) -> tuple[StackFrame, ...]:
    """
    How does this stack look on every rank that does the same?

    Args:
        frames: A stack, innermost first.

    Returns:
        The stack, innermost first, without wrappers and addresses, and
        without what is inside the library for communication.  Never nothing
        if there was something.
    """
    known = tuple(frames)
    kept: list[StackFrame] = []
    for frame in reversed(known):
        normal = normal_frame(frame)
        if normal is None or (kept and _both_wait(kept[-1], normal)):
            continue
        kept.append(normal)
        if _is_cut(normal):
            break
    return tuple(reversed(kept)) or known[:1]


def _both_wait(outer: StackFrame, inner: StackFrame) -> bool:
    # How the C library waits differs between its versions, and between tools.
    return all(
        frame.is_native and _WAITS.match(frame.name)
        for frame in (outer, inner)
    )


def _is_cut(frame: StackFrame) -> bool:
    if frame.is_native:
        return _CUT_NAME.match(frame.name) is not None
    return _CUT_FILE.search(frame.filename) is not None


def _native_name(name: str) -> str:
    """
    A function without its arguments, of any kind.
    """
    name = _TAGS.sub("", name).strip()
    if alias := _ALIAS.match(name):
        name = _VARIANT.sub("", name[alias.end() :])
    depth, kept = 0, []
    for char in name.replace("operator<", "operator_").replace("->", "_"):
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif not depth:
            kept.append(char)
    plain = "".join(kept).removesuffix(" const").strip()
    # A name like "(anonymous namespace)" is all brackets.
    return plain.removeprefix("::") or name


@lru_cache(maxsize=1 << 14)
def is_own(frame: StackFrame) -> bool:
    """
    Is this a line that the user of a job may have written?

    Args:
        frame: A frame, as a tool told it.

    Returns:
        Whether it is neither machine code, nor of Python, nor of a framework.
    """
    if frame.is_native or is_framework(frame.filename):
        return False
    package = frame.filename.replace("\\", "/").partition("/")[0]
    return package.removesuffix(".py") not in _PACKAGES


# A server's replicas serve other requests; stages of a pipeline run other
# layers.  Neither has to be where its peers are.
_OTHER_WORK = ("pp",)
_OTHER_REQUESTS = ("pp", "dp")
_SERVERS = ("sglang::", "VLLM::")

Frames = tuple[StackFrame, ...]


@attrs.frozen(kw_only=True)
class StackClass:
    """
    Processes that do the same.

    Attributes:
        role: What they do in their job.

        frames: Where they are, innermost first, without what differs from
            rank to rank.

        members: The processes, as positions in the tree's *processes*.

        ranks: Their ranks, ascending, as far as they are known.

        who: The same for people, such as ``"0-2,4"`` or ``"pid 4711"``.
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

    A node is a frame that is reached through all frames of the nodes above
    it.  A node comes after the one above it.

    Attributes:
        processes: What was merged.

        frames: The frame of each node.

        parents: The node above each node; -1 if there is none.

        members: Which processes passed through each node, as positions in
            *processes*, ascending.

        own: Whether the frame of each node is a line of the user.

        mains: The node at which each process is; -1 if it has no stack.

        ends: Which stacks end at each node, as positions of processes; a
            process occurs once per thread.

        has_jobs: Whether these are processes of several jobs, whose ranks
            have the same numbers.
    """

    processes: tuple[ProcessStacks, ...]
    frames: Frames
    parents: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    own: tuple[bool, ...]
    mains: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    has_jobs: bool = attrs.field(init=False)

    @has_jobs.default
    def _count_jobs(self) -> bool:
        return len({p.job for p in self.processes if p.job}) > 1

    def who(self, members: Iterable[int]) -> str:
        """
        Which processes are these, in few words?

        Args:
            members: Positions in *processes*.

        Returns:
            Ranks such as ``"0-2,4-7"``, and numbers of processes without one;
            with the name of their job if there are several jobs.
        """
        jobs: dict[str, list[ProcessStacks]] = {}
        for member in members:
            process = self.processes[member]
            job = process.job if self.has_jobs else ""
            jobs.setdefault(job, []).append(process)
        return "; ".join(
            f"{_names(known)} of {job}" if job else _names(known)
            for job, known in jobs.items()
        )

    def stack(self, node: int) -> Frames:
        """
        Which frames lead to a node?

        Args:
            node: Its position.

        Returns:
            The frames, innermost first.
        """
        frames = []
        while node >= 0:
            frames.append(self.frames[node])
            node = self.parents[node]
        return tuple(frames)

    @property
    def classes(self) -> tuple[StackClass, ...]:
        """
        Who does the same?

        Processes of one job and role whose main threads are at the same place
        are a class; the largest one comes first.
        """
        found: dict[tuple[str, str, int], list[int]] = {}
        for member, node in enumerate(self.mains):
            if node >= 0:
                process = self.processes[member]
                job = process.job if self.has_jobs else ""
                key = job, process.role, node
                found.setdefault(key, []).append(member)
        ordered = sorted(found.items(), key=lambda item: -len(item[1]))
        return tuple(
            self._class(role, node, members)
            for (_, role, node), members in ordered
        )

    def outliers(self, *, share: float = 0.2) -> tuple[StackClass, ...]:
        """
        Who is not where almost all of its peers are?

        Peers have the same job and role, and the same stage of a pipeline, as far as
        that is known; what their peers do is only told if more than half of
        them do it.

        Args:
            share: A class is small if it holds at most so much of its peers,
                or one process.

        Returns:
            The small classes, the smallest first.
        """
        peers: dict[object, dict[int, list[int]]] = {}
        for member, node in enumerate(self.mains):
            if node >= 0:
                process = self.processes[member]
                key = process.job if self.has_jobs else "", *_peers_of(process)
                peers.setdefault(key, {}).setdefault(node, []).append(member)

        found = []
        for classes in peers.values():
            sizes = Counter({n: len(m) for n, m in classes.items()})
            total = sizes.total()
            (_, largest), *_ = sizes.most_common(1)
            small = max(1, share * total) if largest > total / 2 else 0
            found += [
                self._class(self.processes[members[0]].role, node, members)
                for node, members in classes.items()
                if len(members) <= small and len(members) < largest
            ]
        return tuple(sorted(found, key=lambda c: len(c.members)))

    def _class(self, role: str, node: int, members: list[int]) -> StackClass:
        ranks = {self.processes[member].rank for member in members}
        return StackClass(
            role=role,
            frames=self.stack(node),
            members=tuple(members),
            ranks=tuple(sorted(r for r in ranks if r is not None)),
            who=self.who(members),
        )

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per place at which a stack ends.
        """
        return [
            {
                "who": self.who(ends),
                "processes": len(set(ends)),
                "threads": len(ends),
                "stack": [str(frame) for frame in self.stack(node)],
            }
            for node, ends in enumerate(self.ends)
            if ends
        ]

    def to_dict(self) -> dict[str, Any]:
        """
        The columns as plain data, for ``json.dumps``.
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
                    "parent": parent,
                    "members": self.who(members),
                    "own": own,
                }
                for frame, parent, members, own in zip(
                    self.frames,
                    self.parents,
                    self.members,
                    self.own,
                    strict=True,
                )
            ],
        }

    def _blocks_(self) -> Iterable[Block]:

        yield Tree(branches(self))


def _names(known: Iterable[ProcessStacks]) -> str:
    ranks, others = [], []
    for process in known:
        if process.rank is None:
            others.append(process.pid)
        else:
            ranks.append(process.rank)
    parts = [fold_ranks(ranks), f"pid {fold_ranks(others)}" if others else ""]
    return ", ".join(filter(None, parts))


def _peers_of(process: ProcessStacks) -> tuple[object, ...]:
    is_server = process.command.startswith(_SERVERS)
    other = _OTHER_REQUESTS if is_server else _OTHER_WORK
    places = [(n, at) for n, at in process.coordinates if n in other]
    return process.role, tuple(sorted(places))


def merge_stacks(
    stacks: Iterable[ProcessStacks],
    *,
    threads: Literal["main", "all"] = "main",
    background: bool = False,
) -> StackTree:
    """
    Where are all these processes?

    Args:
        stacks: Processes, of one job.

        threads: Whether to merge only the main thread of each process.

        background: Whether to merge threads that only wait for work, too, if
            all threads are merged.

    Returns:
        One tree, with frames as they look on every rank.
    """
    processes = tuple(stacks)
    trunk = _Trunk()
    mains = [-1] * len(processes)
    for member, process in enumerate(processes):
        main = process.main_thread
        if threads == "main":
            chosen: Iterable[ThreadStack] = () if main is None else (main,)
        else:
            chosen = process.threads
        for thread in chosen:
            node = trunk.node_of(thread, background=background)
            if node >= 0:
                trunk.ends[node].append(member)
                if thread is main:
                    mains[member] = node
    return trunk.tree(processes, tuple(mains))


class _Trunk:
    """
    A tree that grows.
    """

    def __init__(self) -> None:
        self.frames: list[StackFrame] = []
        self.parents: list[int] = []
        self.own: list[bool] = []
        self.ends: list[list[int]] = []
        self._below: dict[tuple[int, StackFrame], int] = {}
        self._known: dict[Frames, int] = {}
        self._seen: dict[tuple[object, ...], int] = {}

    def node_of(self, thread: ThreadStack, *, background: bool) -> int:
        """
        The node at which a thread is; -1 if it is left out.
        """
        frames = thread.frames or thread.native
        # Frames that are equal are the same object almost always; to compare
        # places in memory is faster than to compare frames.
        key = (thread.is_main, thread.name, *map(id, frames))
        node = self._seen.get(key)
        if node is None:
            left_out = not frames or (not background and is_background(thread))
            node = -1 if left_out else self._grow(frames)
            self._seen[key] = node
        return node

    def _grow(self, frames: Frames) -> int:
        if (known := self._known.get(frames)) is not None:
            return known

        own = {normal_frames((f,))[0]: is_own(f) for f in frames}
        node = -1
        for frame in reversed(normal_frames(frames)):
            below = self._below.get((node, frame))
            if below is None:
                below = len(self.frames)
                self._below[node, frame] = below
                self.frames.append(frame)
                self.parents.append(node)
                self.own.append(own.get(frame, False))
                self.ends.append([])
            node = below
        self._known[frames] = node
        return node

    def tree(
        self, processes: tuple[ProcessStacks, ...], mains: tuple[int, ...]
    ) -> StackTree:
        """
        The tree, grown up.
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
            # Most nodes have one node below, and the same members.
            if len(parts) == 1 and not self.ends[node]:
                found[node] = parts[0]
            else:
                found[node] = tuple(
                    sorted({m for part in parts for m in part})
                )
            if self.parents[node] >= 0:
                above[self.parents[node]].append(found[node])
        yield from found


T = TypeVar("T")


def group_alike(
    items: Iterable[T], key: Callable[[T], Hashable]
) -> list[list[T]]:
    """
    Gather what has the same key, in the order of first appearance.

    Args:
        items: What to gather.

        key: Tells what has to be equal.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


_WIDTH = 96
# Frames of frameworks in a row that are shown: the first, and the last.
_MOST_FOREIGN = 3
_MOST_WHO = 40


def branches(tree: StackTree) -> list[Branch]:
    """
    Which branches does this tree have?

    Args:
        tree: The merged stacks.

    Returns:
        Each with the processes that took it; ``*`` marks lines of the user;
        the innermost frame comes last.
    """
    below: list[list[int]] = [[] for _ in tree.frames]
    roots: list[int] = []
    for node, parent in enumerate(tree.parents):
        (below[parent] if parent >= 0 else roots).append(node)
    return [*_branches(tree, below, roots), *_absent(tree)]


def _branches(
    tree: StackTree, below: Sequence[Sequence[int]], roots: Sequence[int]
) -> Iterator[Branch]:
    # Stacks may be deeper than Python can call itself.
    todo = [(0, node) for node in _largest_last(tree, roots)]
    while todo:
        depth, node = todo.pop()
        chain = [node]
        while len(below[node]) == 1 and not tree.ends[node]:
            (node,) = below[node]
            chain.append(node)

        who = clean(tree.who(tree.members[node]), limit=_MOST_WHO)
        parts = [*_shown(tree, chain)]
        if name := native_function(tree, node):
            parts.append(f"{clean(name, limit=_WIDTH)} (native)")
        yield Branch(depth, who, parts)
        if tree.ends[node] and below[node]:
            here = clean(tree.who(tree.ends[node]), limit=_MOST_WHO)
            yield Branch(depth + 1, f"{here} (here)")
        todo += (
            (depth + 1, child) for child in _largest_last(tree, below[node])
        )


def _largest_last(tree: StackTree, nodes: Sequence[int]) -> list[int]:
    # What is pushed last is drawn first.
    return sorted(nodes, key=lambda n: (len(tree.members[n]), -n))


def _shown(tree: StackTree, chain: Sequence[int]) -> Iterator[str]:
    """
    The frames of a chain; of many foreign ones in a row, two.
    """
    foreign: list[int] = []
    for node in chain:
        if tree.own[node]:
            yield from _foreign(tree, foreign)
            foreign = []
            yield f"* {_brief(tree.frames[node])}"
        else:
            foreign.append(node)
    yield from _foreign(tree, foreign)


def _foreign(tree: StackTree, nodes: Sequence[int]) -> Iterator[str]:
    if len(nodes) <= _MOST_FOREIGN:
        yield from (_brief(tree.frames[node]) for node in nodes)
    else:
        yield _brief(tree.frames[nodes[0]])
        yield f"… {len(nodes) - 2} more"
        yield _brief(tree.frames[nodes[-1]])


def native_function(tree: StackTree, node: int) -> str:
    """
    Which native function are all in that are at this place?

    Args:
        tree: The merged stacks.

        node: A position in its columns.

    Returns:
        Its name, as a tool told it; ``""`` if it is unknown, or if there are
        several.
    """
    names = set()
    for member in tree.ends[node]:
        thread = tree.processes[member].main_thread
        # Of other threads it is not known which one ends here.
        if thread is None or not thread.native or not thread.frames:
            return ""
        is_here = tree.frames[node] == normal_frames(thread.frames)[0]
        names.add(native_name(thread.native) if is_here else "")
    return names.pop() if len(names) == 1 else ""


def _brief(frame: StackFrame) -> str:
    return clean(str(frame), limit=_WIDTH)


def _absent(tree: StackTree) -> Iterator[Branch]:
    """
    Processes that have no stack, by their state.
    """
    seen = {member for ends in tree.ends for member in ends}
    states: dict[str, list[int]] = {}
    for member, process in enumerate(tree.processes):
        if member not in seen:
            states.setdefault(process.state, []).append(member)
    for state, members in states.items():
        why = f" (state {clean(state)})" if state else ""
        who = clean(tree.who(members), limit=_MOST_WHO)
        yield Branch(0, who, [f"no stack{why}"])
