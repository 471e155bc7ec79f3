"""
Which threads only wait for work, in every job that is well?

The list is data: a thread is in the background if its name or one of its
frames says so, and nothing says that it is at work.
"""

from __future__ import annotations

import re

import attrs

from .model import ThreadStack


__all__ = ["BACKGROUND", "Background", "is_background"]


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(text)


@attrs.frozen(kw_only=True)
class Background:
    """
    One kind of thread.

    Attributes:
        file: Is searched for in the file of a frame.

        function: Has to match the name of that frame, without its class.

        within: How many of the innermost frames to look at.

        unless: If one of the frames matches this, it is at work.
    """

    file: re.Pattern[str] = attrs.field(converter=_compile, default="")
    function: re.Pattern[str] = attrs.field(converter=_compile, default=".*")
    within: int = 1_000_000
    unless: re.Pattern[str] | None = None


_WORKS = re.compile(r".*(runExecute|AsyncWork|evaluate_function|execute).*")

BACKGROUND = (
    Background(
        file=r"concurrent/futures/thread\.py$", function="_worker", within=1
    ),
    Background(file=r"concurrent/futures/process\.py$", function="run"),
    Background(file=r"tqdm/_monitor\.py$"),
    Background(file=r"torch/utils/data/_utils/pin_memory\.py$"),
    Background(file=r"torch/_inductor/compile_worker/"),
    Background(file=r"torch/distributed/elastic/timer/"),
    Background(file=r"multiprocessing/queues\.py$", function="_feed"),
    Background(
        file=r"multiprocessing/pool\.py$",
        function="_?(handle_(workers|tasks|results)|worker|wait_for_updates)",
    ),
    Background(file=r"multiprocessing/resource_sharer\.py$"),
    Background(file=r"logging/handlers\.py$", function="_monitor"),
    Background(file=r"tensorboard/summary/writer/event_file_writer\.py$"),
    Background(file=r"(^|/)wandb/sdk/"),
    Background(file=r"prometheus_client/"),
    Background(file=r"zmq/utils/garbage\.py$"),
    Background(file=r"distdebug/"),
    Background(
        function=r".*watchdog.*|_?heartbeat\w*|.*[Hh]eartbeatMonitor.*"
    ),
    Background(function=r".*ncclCommWatchdog.*|.*workCleanupLoop.*"),
    Background(
        function=r".*StoreDaemon.*|.*StoreMasterDaemon.*|.*BackgroundThread.*"
    ),
    Background(
        function=r"(torch::autograd::)?(ReadyQueue::pop|Engine::thread_main).*",
        unless=_WORKS,
    ),
    Background(function=r"c10d::ProcessGroupGloo::runLoop.*", unless=_WORKS),
    Background(function=r"gloo::transport::\w+::Loop::run.*", unless=_WORKS),
    Background(
        function=r"gomp_thread_start|__kmp_\w+|blas_thread_server|"
        r"ncclProxy(Service|Progress)\w*|ncclAsyncThread\w*"
    ),
)

# Names that only such threads have.
_NAMES = re.compile(
    r"cuda-?\w*|ZMQbg/.*|jemalloc_bg\w*|grpc\w*|event_engine|tqdm.*"
    r"|QueueFeederThread|wandb.*|asyncio_\d+|gloo_tcp_loop|pt_tcpstore\w*"
)
# Names of threads that also work; if nothing is seen of them, they wait.
_SILENT = re.compile(r"pt_(nccl_|autograd|gloo|elastic)\w*")


def is_background(thread: ThreadStack) -> bool:
    """
    Does this thread only wait for work?

    Args:
        thread: Any thread.

    Returns:
        Whether it can be left out where there are many; never for a main
        thread.
    """
    if thread.is_main:
        return False
    if not thread.frames and _NAMES.fullmatch(thread.name):
        return True
    if not thread.frames and not thread.native:
        return _SILENT.fullmatch(thread.name) is not None

    # Python says what a thread is for; the rest says how it waits.
    python = [f for f in thread.frames if not f.is_native]
    frames = [
        (f.filename.replace("\\", "/"), f.name.rpartition(".")[2])
        for f in python or thread.frames or thread.native
    ]
    return any(_fits(kind, frames) for kind in BACKGROUND)


def _fits(kind: Background, frames: list[tuple[str, str]]) -> bool:
    if kind.unless and any(kind.unless.fullmatch(name) for _, name in frames):
        return False
    return any(
        kind.file.search(file) and kind.function.fullmatch(name)
        for file, name in frames[: kind.within]
    )
