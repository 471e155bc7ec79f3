"""
How are processes of each framework known?

All of it is data.  Titles and command lines are searched, never the name of 15
characters, in which ``sglang::scheduler_TP0`` is ``sglang::schedul``; only of
a zombie, and of a process that hangs with its memory locked, nothing else is
left, so that the patterns of titles are happy with as much.
"""

from __future__ import annotations

import re

from typing import NamedTuple

from ..model import Role


__all__ = [
    "COMPILE_WORKER",
    "DATA_WORKER",
    "ENGINE",
    "FALLBACKS",
    "LAUNCHERS",
    "LAUNCHER_NAME",
    "MEGATRON",
    "MULTIPROCESSING",
    "MULTIPROCESSING_HELPER",
    "PYTHON_TOOLS",
    "RANK_THREADS",
    "TITLES",
    "WRAPPERS",
    "Look",
]


class Look(NamedTuple):
    """
    What processes of one kind look like.
    """

    pattern: re.Pattern[str]
    framework: str
    role: Role


def _look(pattern: str, framework: str, role: Role) -> Look:
    return Look(re.compile(pattern), framework, role)


# By the title that a process gave itself; the first that matches wins.
TITLES = (
    _look(r"^sgl\w*::(?:\w*sched|gpu_worker|async_draft)", "sglang", "rank"),
    _look(r"^sgl\w*::", "sglang", "server"),
    _look(
        r"^ray::(?:IDLE|Spill|Restore|Serve[A-Z]|Proxy|HTTPProxy|JobSuper"
        r"|TrainController|TunerInternal|_?Stats|SplitCoord|Monitor\b"
        r"|DashboardA|_?QueueActor)",
        "ray",
        "server",
    ),
    _look(r"^ray::", "ray", "rank"),
    # The part in front can be chosen (VLLM_PROCESS_NAME_PREFIX).
    _look(r"^[\w.-]+::Worker(?:$|_)", "vllm", "rank"),
    _look(
        r"^[\w.-]+::(?:EngineCor|APIServer|DPCoord|Engine|Router)",
        "vllm",
        "server",
    ),
)
# With a single GPU the engine of vLLM runs the model itself.
ENGINE = re.compile(r"::EngineCor")

# By the program that an interpreter runs: a module, or the path of a script.
LAUNCHERS = (
    _look(
        r"(?:^|/)torchrun$|(?:^|/)torch[./]distributed[./](?:run|launch)\b",
        "torchrun",
        "launcher",
    ),
    _look(
        r"(?:^|/)accelerate(?:-launch)?$|accelerate[./]commands[./]launch\b",
        "accelerate",
        "launcher",
    ),
    _look(
        r"(?:^|/)(?:deepspeed|ds)$|deepspeed[./]launcher[./]\w+",
        "deepspeed",
        "launcher",
    ),
    _look(
        r"(?:^|/)composer$|composer[./]cli[./]launcher", "composer", "launcher"
    ),
    _look(r"(?:^|/)dlrover-run$|dlrover\.trainer\.", "dlrover", "launcher"),
    _look(r"(?:^|/)ft_launcher$", "torchrun", "launcher"),
    _look(r"(?:^|/)(?:colossalai|horovodrun)$", "torchrun", "launcher"),
)
# Whatever calls torch's launcher within its own process bears this name.
LAUNCHER_NAME = "pt_elastic"

MEGATRON = re.compile(r"(?:^|/)pretrain_\w+\.py$")

# Where titles are not set: what runs such a program is, or starts, a worker.
FALLBACKS = (
    _look(r"python.*sglang", "sglang", "server"),
    _look(r"python.*\bvllm\b", "vllm", "server"),
)

MULTIPROCESSING = re.compile(
    r"from multiprocessing\.spawn import spawn_main|--multiprocessing-fork"
    r"|from multiprocessing\.forkserver import main"
)
MULTIPROCESSING_HELPER = re.compile(
    r"from multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)"
    r" import main"
)
COMPILE_WORKER = re.compile(
    r"torch[./]_inductor[./]compile_worker|--pickler=torch\._inductor"
)
DATA_WORKER = "pt_data_worker"

# Threads that a process has only once it has peers.  The store's own thread is
# not among them: the launcher has that, too.
RANK_THREADS = re.compile(r"^(?:gloo|pt_gloo|pt_nccl|nccl|NCCL|pt_xccl|hccl)")

# Programs in Python that may have torch, and the variables of a rank, in their
# environment, and are none.
PYTHON_TOOLS = re.compile(
    r"(?:^|/)(?:ipykernel\w*|ipython\d?|jupyter[\w-]*|pylsp|mypy|dmypy|ruff"
    r"|jedi-language-server|pyright[\w-]*|basedpyright[\w-]*|black|pip[\d.]*"
    r"|uv|conda|mamba|pytest|py\.test|tox|nox|pre-commit|py-spy|pystack"
    r"|memray|distdebug|tensorboard|wandb|mlflow|nvitop|gpustat|supervisord"
    r"|gunicorn|uvicorn|http|venv|virtualenv|lsp_server)"
    r"(?:$|\.[\w.]+$|/__main__\.py$)|(?:^|/)debugpy[./]adapter"
)

# Programs whose command line holds that of another one.
WRAPPERS = frozenset(
    """
    ag apptainer awk bash bat catatonit chroot containerd-shim csh cuda-gdb
    dash docker dumb-init egrep emacs enroot env exec fgrep find fish flock
    gdb git grep htop hydra_pmi_proxy ionice kill killall ksh kubectl less
    lldb ltrace make man mosh mpiexec mpirun more nano ncu nice nohup nsenter
    nsys nsys-launcher numactl nvim orted parallel perf pgrep pkill podman
    prted ps py-spy pystack rg rsync runc salloc sbatch screen sed setpriv
    setsid sh sshd ssh singularity slurmstepd srun stdbuf strace su sudo
    systemd-run tail taskset tcsh tee time timeout tini tmux top unbuffer
    unshare vi vim view watch xargs zsh
    """.split()  # noqa: SIM905 a list would be four times as long
)
