"""
Workers of every framework, on nodes that do not exist.
"""

from __future__ import annotations

import os
import pickle

from pathlib import Path

import psutil
import pytest

from distdebug.errors import PatternError
from distdebug.processes import find_workers
from distdebug.processes.roles import survey
from distdebug.processes.roles.evidence import read_evidence
from distdebug.processes.worker import worker_of


PY = "/venv/bin/python"
SPAWN = (
    PY,
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
    "--multiprocessing-fork",
)
TRACKER = (
    PY,
    "-c",
    "from multiprocessing.resource_tracker import main;main(3)",
)
FORK_SERVER = (
    PY,
    "-c",
    "from multiprocessing.forkserver import main; main(3)",
)
TORCH = "libtorch_cpu.so"
GLOO = ["gloo_tcp_loop", "pt_gloo_runloop"]


def ranks_env(rank, size, **other):
    """
    What torchrun sets, and what its ranks inherit.
    """
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        **other,
    }


def found(fake_proc, *patterns, **options):
    """
    What each worker is, by its number.
    """
    workers = find_workers(patterns, root=fake_proc.root, **options)
    return {w.pid: (w.framework, w.role, w.rank) for w in workers}


def by_pid(fake_proc, pid):
    """
    The worker of this number.
    """
    return next(w for w in find_workers(root=fake_proc.root) if w.pid == pid)


class TestSglang:
    def test_titles(self, fake_proc):
        """
        Schedulers are ranks, and the rest serves requests.
        """
        fake_proc.add(10, PY, "-m", "sglang.launch_server", "--tp", "2")
        for n, title in enumerate(
            [
                "sglang::scheduler_TP1",
                "sglang::scheduler_TP0",
                "sglang::detokenizer",
                "sglang::data_parallel_controller",
            ]
        ):
            fake_proc.add(20 + n, title, parent=10, environ={}, maps=TORCH)

        got = found(fake_proc)

        assert [21, 20, 10, 22, 23] == list(got)
        assert ("sglang", "rank", 1) == got[20]
        assert ("sglang", "rank", 0) == got[21]
        assert {("sglang", "server", None)} == {got[n] for n in (10, 22, 23)}

    @pytest.mark.parametrize(
        "title",
        [
            "sglang::scheduler_TP0_PP0_DP0_EP0",
            "sglang::scheduler_PP2_TP1",
            "sglang::scheduler::llama-3",
            "sglang::semi_pd_scheduler_DECODE_DP0_TP1",
            "sglang::gpu_worker_TP1_PP0",
            "sgl_diffusion::scheduler_TP0",
            "VLLM::Worker",
            "VLLM::Worker_TP3",
            "VLLM::Worker_DP0_PP0_TP0_EP0",
            "my-prefix::Worker_TP1",
            "ray::RayTrainWorker.execute",
        ],
    )
    def test_ranks(self, fake_proc, title):
        """
        Those who run the model are ranks, in any spelling.
        """
        fake_proc.add(20, title, exe=PY, environ={})

        (worker,) = find_workers(root=fake_proc.root)

        assert "rank" == worker.role
        assert title == worker.title

    def test_inherited_rank(self, fake_proc):
        """
        The rank is that of the title, whatever Slurm calls the node.
        """
        node = {"SLURM_PROCID": 1, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 9}
        fake_proc.add(10, PY, "-m", "sglang.launch_server", environ=node)
        for n in (0, 1):
            fake_proc.add(
                20 + n,
                f"sglang::scheduler_TP{n}_PP1",
                parent=10,
                environ=node,
                maps=TORCH,
            )

        worker = by_pid(fake_proc, 21)

        assert worker.rank is None
        assert (("tp", 1), ("pp", 1)) == worker.coordinates
        assert ("title", "9") == (worker.source, worker.job)

    def test_fallback(self, fake_proc):
        """
        Without titles, the server is known by its command line, and its
        workers by torch.
        """
        fake_proc.add(10, PY, "-m", "dynamo.sglang", "--tp", "2", environ={})
        fake_proc.add(20, *SPAWN, parent=10, environ={}, maps=TORCH)
        fake_proc.add(21, *SPAWN, parent=10, environ={})
        fake_proc.add(22, *TRACKER, parent=10, environ={})
        fake_proc.add(23, "nvidia-smi", parent=10)

        assert {
            10: ("sglang", "server", None),
            20: ("sglang", "rank", None),
            21: ("sglang", "child", None),
        } == found(fake_proc)

    def test_wrappers(self, fake_proc):
        """
        Whoever has the command line of a worker in his own is none.
        """
        command = "python3 -m sglang.launch_server --tp 2"
        for n, line in enumerate(
            [
                ("bash", "-c", command),
                ("/bin/sh", "-c", command),
                ("srun", "--ntasks=1", *command.split()),
                ("timeout", "60", *command.split()),
                ("docker", "run", "image", *command.split()),
                ("ssh", "node1", command),
                ("tee", "python_sglang.log"),
                ("grep", "-f", "sglang::scheduler"),
                ("vim", "python/sglang/scheduler.py"),
                ("tmux: server", "new", command),
                ("pgrep", "-f", "sglang::scheduler"),
            ]
        ):
            fake_proc.add(100 + n, *line, exe="/usr/bin/x", environ={})

        assert {} == found(fake_proc)
        assert {} == found(fake_proc, "sglang")
        assert {110: ("pattern", "rank", None)} == found(fake_proc, "^pgrep")


class TestVllm:
    def test_titles(self, fake_proc):
        """
        An engine is a server if it has workers.
        """
        fake_proc.add(10, "/venv/bin/vllm", "serve", "m", exe=PY, environ={})
        fake_proc.add(11, "VLLM::APIServer_0", parent=10, environ={})
        fake_proc.add(12, "VLLM::EngineCore_DP1", parent=10, environ={})
        fake_proc.add(13, "VLLM::DPCoordinator", parent=10, environ={})
        fake_proc.add(20, "VLLM::Worker_TP0", parent=12, environ={})
        fake_proc.add(21, "VLLM::Worker_TP1", parent=12, environ={})

        got = found(fake_proc)

        assert [20, 21] == [p for p, x in got.items() if x[1] == "rank"]
        assert {("vllm", "server", None)} == {got[n] for n in (11, 12, 13)}
        assert (("dp", 1),) == by_pid(fake_proc, 12).coordinates

    def test_engine(self, fake_proc):
        """
        Without workers it runs the model itself.
        """
        fake_proc.add(12, "VLLM::EngineCore", environ={})
        fake_proc.add(13, "VLLM::EngineCore", parent=12, environ={})

        assert ("vllm", "rank", None) == found(fake_proc)[12]


class TestRay:
    def test_workers(self, fake_proc):
        """
        Actors are ranks, also idle workers are shown, and Ray's own daemons
        are not.
        """
        fake_proc.add(10, "/ray/raylet/raylet", "--x", exe="/ray/raylet")
        fake_proc.add(11, "/ray/gcs/gcs_server", exe="/ray/gcs_server")
        fake_proc.add(
            12, PY, "/ray/dashboard/dashboard.py", exe=PY, environ={}
        )
        node = {"SLURM_PROCID": 3, "SLURM_NTASKS": 4}
        env = ranks_env(1, 2) | node
        fake_proc.add(20, "ray::IDLE", parent=10, environ=node)
        fake_proc.add(21, "ray::TrainWorker", parent=10, environ=env)
        fake_proc.add(22, "ray::Actor.run", parent=10, environ=node)
        fake_proc.add(23, "ray::ServeController", parent=10, environ=node)

        assert {
            21: ("ray", "rank", 1),
            22: ("ray", "rank", None),
            20: ("ray", "server", None),
            23: ("ray", "server", None),
        } == found(fake_proc)

    def test_data_loader(self, fake_proc):
        """
        A forked child has the title of its parent, and is no rank.
        """
        title = "ray::RayTrainWorker"
        fake_proc.add(20, title, environ=ranks_env(0, 1), maps=TORCH)
        fake_proc.add(
            21,
            title,
            parent=20,
            name="pt_data_worker",
            environ=ranks_env(0, 1),
            maps=TORCH,
        )
        fake_proc.add(22, title, parent=20, environ={}, maps=TORCH)

        got = found(fake_proc)

        assert ("ray", "rank", 0) == got[20]
        assert ("ray", "dataloader", None) == got[21] == got[22]


LAUNCHERS = [
    ((PY, "/venv/bin/torchrun", "--nproc-per-node", "2", "t.py"), "torchrun"),
    ((PY, "-m", "torch.distributed.run", "t.py"), "torchrun"),
    ((PY, "-m", "torch.distributed.launch", "t.py"), "torchrun"),
    ((PY, "/lib/torch/distributed/run.py", "t.py"), "torchrun"),
    ((PY, "/venv/bin/accelerate", "launch", "t.py"), "accelerate"),
    ((PY, "-m", "accelerate.commands.launch", "t.py"), "accelerate"),
    ((PY, "/venv/bin/deepspeed", "t.py"), "deepspeed"),
    ((PY, "-m", "deepspeed.launcher.launch", "t.py"), "deepspeed"),
]


class TestLaunchers:
    @pytest.mark.parametrize(("line", "framework"), LAUNCHERS)
    def test_children(self, fake_proc, line, framework):
        """
        Children of a launcher are ranks; those of ranks are not.
        """
        env = ranks_env(1, 2)
        fake_proc.add(10, *line, environ={})
        fake_proc.add(20, PY, "-u", "t.py", parent=10, environ=env, maps=TORCH)
        fake_proc.add(
            30,
            PY,
            "-u",
            "t.py",
            parent=20,
            name="pt_data_worker",
            environ=env,
            maps=TORCH,
        )
        fake_proc.add(31, *SPAWN, parent=20, environ=env, maps=TORCH)
        fake_proc.add(
            32,
            PY,
            "/lib/torch/_inductor/compile_worker/__main__.py",
            "--pickler=torch._inductor.x",
            parent=20,
            environ=env,
        )
        fake_proc.add(33, PY, "x", parent=32, environ=env, maps=TORCH)
        fake_proc.add(34, PY, "tool.py", parent=20, environ=env)
        fake_proc.add(35, "git", "status", parent=20, exe="/usr/bin/git")
        fake_proc.add(36, *TRACKER, parent=20, environ=env)
        fake_proc.add(37, "ninja", parent=33, exe="/usr/bin/ninja")

        got = found(fake_proc)
        ranks = found(fake_proc, include_children=False)

        assert {
            20: (framework, "rank", 1),
            10: (framework, "launcher", None),
            30: (framework, "dataloader", None),
            31: (framework, "dataloader", None),
            32: (framework, "compile", None),
            33: (framework, "compile", None),
            34: (framework, "child", None),
            35: (framework, "child", None),
        } == got
        assert {10, 20} == ranks.keys()

    def test_fields(self, fake_proc):
        """
        A rank knows its place, and where that was learned.
        """
        fake_proc.add(10, PY, "/venv/bin/torchrun", "t.py", environ={})
        env = ranks_env(1, 2, TORCHELASTIC_RUN_ID="run")
        fake_proc.add(20, PY, "t.py", parent=10, environ=env, start=77)

        worker = by_pid(fake_proc, 20)

        assert (1, 2, 1, 2) == (
            worker.rank,
            worker.world_size,
            worker.local_rank,
            worker.local_world_size,
        )
        assert ("run 127.0.0.1:29500", "environ") == (
            worker.job,
            worker.source,
        )
        assert (77, 10, 1001) == (
            worker.start_ticks,
            worker.parent_pid,
            worker.uid,
        )

    def test_wrapped(self, fake_proc):
        """
        Shells between a launcher and its ranks do not matter, and are none.
        """
        fake_proc.add(10, PY, "/venv/bin/torchrun", "run.sh", environ={})
        fake_proc.add(15, "bash", "run.sh", parent=10, environ={})
        fake_proc.add(16, "numactl", PY, "t.py", parent=15, environ={})
        fake_proc.add(20, PY, "t.py", parent=16, environ=ranks_env(0, 1))

        assert {10, 20} == found(fake_proc).keys()

    def test_pod(self, fake_proc):
        """
        A container's variables of the node do not make its launcher a rank,
        nor what else runs in it.
        """
        pod = ranks_env(1, 2)
        fake_proc.add(5, PY, "start.py", environ=pod)
        fake_proc.add(10, PY, "/venv/bin/torchrun", parent=5, environ=pod)
        own = ranks_env(4, 8)
        fake_proc.add(20, PY, "t.py", parent=10, environ=own, maps=TORCH)
        fake_proc.add(30, PY, "-m", "ipykernel_launcher", environ=pod)

        assert {
            20: ("torchrun", "rank", 4),
            5: ("torch", "launcher", None),
            10: ("torchrun", "launcher", None),
        } == found(fake_proc)

    def test_twins(self, fake_proc):
        """
        Of two with the same rank, the one with torch is meant.
        """
        pod = ranks_env(0, 2)
        fake_proc.add(10, PY, "metrics.py", environ=pod)
        fake_proc.add(20, PY, "t.py", environ=pod, maps=TORCH)

        assert {20: ("torch", "rank", 0)} == found(fake_proc)

    @pytest.mark.parametrize("has_own", [True, False])
    def test_other_program(self, fake_proc, has_own):
        """
        A program that calls torch's launcher is known by its first thread, or
        by the ranks that come from it.
        """
        fake_proc.add(
            10, PY, "go.py", name="go" if has_own else "pt_elastic", environ={}
        )
        env = ranks_env(0, 1) | (
            {"TORCHELASTIC_RUN_ID": "r"} if has_own else {}
        )
        fake_proc.add(20, PY, "t.py", parent=10, environ=env)

        assert {
            20: ("torchrun", "rank", 0),
            10: ("torchrun", "launcher", None),
        } == found(fake_proc)

    def test_zombie(self, fake_proc):
        """
        A rank that died is shown as long as nobody asked why.
        """
        fake_proc.add(10, PY, "/venv/bin/torchrun", "t.py", environ={})
        fake_proc.add(20, parent=10, name="python", state="Z")
        fake_proc.add(21, parent=2, name="kworker/0:1", state="I")
        fake_proc.add(22, parent=1, name="sglang::schedul", state="Z")
        fake_proc.add(23, parent=1, name="sh", state="Z")

        assert {
            20: ("torchrun", "rank", None),
            22: ("sglang", "rank", None),
            10: ("torchrun", "launcher", None),
        } == found(fake_proc)

    def test_unreadable(self, fake_proc):
        """
        Where nobody may read the environment, the rank may be in the command
        line, and is unknown otherwise.
        """
        fake_proc.add(10, PY, "/venv/bin/torchrun", "t.py")
        fake_proc.add(20, PY, "t.py", "--local-rank=3", parent=10)
        fake_proc.add(21, PY, "t.py", parent=10)

        worker, other = (by_pid(fake_proc, pid) for pid in (20, 21))

        assert (None, 3, "command line") == (
            worker.rank,
            worker.local_rank,
            worker.source,
        )
        assert (None, None, "") == (other.rank, other.local_rank, other.source)


class TestEnvironment:
    @pytest.mark.parametrize(
        ("line", "env", "expected"),
        [
            ("t.py", {"RANK": 1, "WORLD_SIZE": 2}, ("torch", "rank", 1)),
            ("t.py", {"RANK": 0, "WORLD_SIZE": 1}, ("torch", "rank", 0)),
            (
                "/x/pretrain_gpt.py",
                {"RANK": 1, "WORLD_SIZE": 2},
                ("megatron", "rank", 1),
            ),
            (
                "t.py",
                {"SLURM_PROCID": 1, "SLURM_NTASKS": 2},
                ("slurm", "rank", 1),
            ),
            (
                "t.py",
                {"RANK": 1, "WORLD_SIZE": 2, "SLURM_PROCID": 1},
                ("slurm", "rank", 1),
            ),
            (
                "t.py",
                {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2},
                ("mpi", "rank", 1),
            ),
            (
                "t.py",
                {"RANK": 1, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x"},
                ("torchrun", "rank", 1),
            ),
        ],
    )
    def test_ranks(self, fake_proc, line, env, expected):
        """
        A program in Python with a rank of its own is one.
        """
        fake_proc.add(20, PY, line, environ=env)
        fake_proc.add(21, "bash", line, environ=env, exe="/bin/bash")

        assert {20: expected} == found(fake_proc)

    @pytest.mark.parametrize(
        ("line", "env"),
        [
            ("t.py", {"RANK": 1}),
            ("t.py", {"RANK": "one", "WORLD_SIZE": 2}),
            ("t.py", {"SLURM_PROCID": 0, "SLURM_NTASKS": 1}),
            ("-m ipykernel_launcher", {"RANK": 0, "WORLD_SIZE": 2}),
            ("/venv/bin/pytest tests", {"RANK": 0, "WORLD_SIZE": 2}),
            ("-m pip install sglang", {"RANK": 0, "WORLD_SIZE": 2}),
            ("-m debugpy.adapter", {"RANK": 0, "WORLD_SIZE": 2}),
            ("/x/debugpy/adapter --for", {"RANK": 0, "WORLD_SIZE": 2}),
            ("-m distdebug stacks", {"RANK": 0, "WORLD_SIZE": 2}),
            ("/x/distdebug/__main__.py", {"RANK": 0, "WORLD_SIZE": 2}),
            ("-m http.server", {"RANK": 0, "WORLD_SIZE": 2}),
        ],
    )
    def test_others(self, fake_proc, line, env):
        """
        Less than that makes no rank, and tools are none.
        """
        fake_proc.add(20, PY, *line.split(), environ=env)

        assert {} == found(fake_proc)

    def test_one_task(self, fake_proc):
        """
        The only task of Slurm is a rank if it has torch.
        """
        env = {"SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_NNODES": 1}
        fake_proc.add(20, PY, "t.py", environ=env, maps=TORCH)

        assert ("slurm", "rank", 0) == found(fake_proc)[20]
        assert 1 == by_pid(fake_proc, 20).local_world_size

    @pytest.mark.parametrize(
        ("env", "size"),
        [
            ({"SLURM_PROCID": 1, "SLURM_NTASKS": 4, "SLURM_NNODES": 2}, None),
            ({"SLURM_PROCID": 1, "SLURM_NTASKS": 4, "SLURM_NNODES": 1}, 4),
            ({"RANK": 1, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": "x"}, None),
            ({"SLURM_PROCID": 1}, None),
            (
                {
                    "OMPI_COMM_WORLD_RANK": 1,
                    "OMPI_COMM_WORLD_SIZE": 4,
                    "OMPI_COMM_WORLD_LOCAL_SIZE": 4,
                },
                4,
            ),
        ],
    )
    def test_local_world_size(self, fake_proc, env, size):
        """
        How many ranks are on this node is known if they are in sequence.
        """
        fake_proc.add(20, PY, "t.py", environ=env, maps=TORCH)

        assert size == by_pid(fake_proc, 20).local_world_size

    def test_inherited(self, fake_proc):
        """
        A program that a rank started is not a second one.
        """
        env = ranks_env(0, 1)
        fake_proc.add(20, PY, "t.py", environ=env)
        fake_proc.add(21, "sh", "-c", "x", parent=20, environ=env, exe="/sh")
        fake_proc.add(22, PY, "x.py", parent=21, environ=env)

        got = found(fake_proc)

        assert ("torch", "rank", 0) == got[20]
        assert ("torch", "child", None) == got[21] == got[22]


class TestMultiprocessing:
    def spawn(self, fake_proc, line=SPAWN, parent_env=None, **options):
        """
        A program that started two processes and waits for them.
        """
        fake_proc.add(10, PY, "t.py", environ=parent_env or {}, maps=TORCH)
        fake_proc.add(11, *TRACKER, parent=10, environ={})
        for pid in (20, 21):
            options = {"environ": parent_env or {}, "maps": TORCH, **options}
            fake_proc.add(pid, *line, parent=10, **options)

    @pytest.mark.parametrize("line", [SPAWN, (PY, "t.py")])
    def test_threads(self, fake_proc, line):
        """
        Those that carry collectives are ranks, and who started them waits.
        """
        self.spawn(fake_proc, line, threads=GLOO)

        assert {
            20: ("multiprocessing", "rank", None),
            21: ("multiprocessing", "rank", None),
            10: ("multiprocessing", "launcher", None),
        } == found(fake_proc)

    def test_one(self, fake_proc):
        """
        One that is not as far as the others is a rank like them.
        """
        self.spawn(fake_proc)
        fake_proc.add(
            22, *SPAWN, parent=10, environ={}, maps=TORCH, threads=GLOO
        )
        fake_proc.add(23, *SPAWN, parent=10, environ={})

        assert {10, 20, 21, 22} == found(fake_proc).keys()

    def test_connection(self, fake_proc):
        """
        Those that wait where ranks meet are ranks.
        """
        self.spawn(fake_proc)
        for pid in (20, 21):
            folder = fake_proc.folder(pid)
            (folder / "fd/3").symlink_to("socket:[7]")
            (folder / "net/tcp").write_text(
                "sl local\n0: 0:1 0:2 01 0:0 0:0 0 0 0 7 1\n"
            )

        assert {10, 20, 21} == found(fake_proc).keys()

    def test_pool(self, fake_proc):
        """
        Processes without peers are none, even with torch.
        """
        self.spawn(fake_proc)
        (fake_proc.folder(20) / "fd/3").symlink_to("/data")

        assert {} == found(fake_proc)

    def test_data_loader(self, fake_proc):
        """
        Nor are the data loaders of a program that is alone.
        """
        self.spawn(fake_proc, name="pt_data_worker")

        assert {} == found(fake_proc)

    def test_own_rank(self, fake_proc):
        """
        Ranks that were told so at run time are known by number.
        """
        fake_proc.add(10, PY, "t.py", environ={})
        for n in (0, 1):
            fake_proc.add(20 + n, *SPAWN, parent=10, environ=ranks_env(n, 2))

        assert {
            20: ("multiprocessing", "rank", 0),
            21: ("multiprocessing", "rank", 1),
            10: ("multiprocessing", "launcher", None),
        } == found(fake_proc)

    def test_node_rank(self, fake_proc):
        """
        What started them is not a rank because its container says so.
        """
        self.spawn(fake_proc, parent_env=ranks_env(1, 2), threads=GLOO)

        assert {
            20: ("torch", "rank", None),
            21: ("torch", "rank", None),
            10: ("torch", "launcher", None),
        } == found(fake_proc)
        assert by_pid(fake_proc, 20).world_size is None

    def test_world_size(self, fake_proc):
        """
        The size that the parent set is that of its ranks.
        """
        self.spawn(fake_proc, parent_env={"WORLD_SIZE": 2}, threads=GLOO)

        assert 2 == by_pid(fake_proc, 20).world_size

    def test_fork_server(self, fake_proc):
        """
        What a fork server starts belongs to whoever started the server.
        """
        fake_proc.add(10, PY, "t.py", environ={}, maps=TORCH)
        fake_proc.add(11, *FORK_SERVER, parent=10, environ={})
        for pid in (20, 21):
            fake_proc.add(
                pid,
                *FORK_SERVER,
                parent=11,
                environ={},
                maps=TORCH,
                threads=GLOO,
            )

        assert {10, 20, 21} == found(fake_proc).keys()

    def test_checkpoint(self, fake_proc):
        """
        A child that has peers of its own is neither a rank nor a reader.
        """
        env = ranks_env(0, 2)
        fake_proc.add(20, PY, "t.py", environ=env, maps=TORCH, threads=GLOO)
        fake_proc.add(
            30, *SPAWN, parent=20, environ=env, maps=TORCH, threads=GLOO
        )

        assert ("torch", "child", None) == found(fake_proc)[30]

    def test_rank_in_fork(self, fake_proc):
        """
        A forked child that inherited its sockets has no peers.
        """
        env = ranks_env(0, 2)
        for pid, parent in ((20, 1), (30, 20)):
            folder = fake_proc.add(
                pid, PY, "t.py", parent=parent, environ=env, maps=TORCH
            )
            (folder / "fd/3").symlink_to("socket:[7]")
            (folder / "net/tcp").write_text(
                "sl local\n0: 0:1 0:2 01 0:0 0:0 0 0 0 7 1\n"
            )

        assert ("torch", "dataloader", None) == found(fake_proc)[30]


class TestAlone:
    @pytest.mark.parametrize(
        ("line", "threads", "expected"),
        [
            ("t.py", GLOO, ("torch", "rank", None)),
            ("t.py --rank 3 --world-size 8", [], ("torch", "rank", 3)),
            ("t.py --local_rank=1", [], ("torch", "rank", None)),
            ("t.py", ["pt_tcpstore_uv", "python"], None),
            ("-m ipykernel_launcher", GLOO, None),
            ("-m jupyterlab", [], None),
            ("/venv/bin/jupyter-lab", [], None),
            ("-m pylsp", [], None),
        ],
    )
    def test_torch(self, fake_proc, line, threads, expected):
        """
        To have torch loaded is not enough to be a rank.
        """
        fake_proc.add(
            20,
            PY,
            *line.split(),
            environ={"HOME": "/"},
            maps=TORCH,
            threads=threads,
        )
        fake_proc.add(21, PY, *line.split(), environ={}, threads=threads)

        assert ({20: expected} if expected else {}) == found(fake_proc)


class TestPatterns:
    def test_only(self, fake_proc):
        """
        Only what matches is found, with what it started.
        """
        env = ranks_env(0, 1)
        fake_proc.add(10, PY, "a.py", environ=env, maps=TORCH)
        fake_proc.add(20, PY, "b.py", environ=env, maps=TORCH)
        fake_proc.add(21, *SPAWN, parent=20, environ=env, maps=TORCH)
        fake_proc.add(30, "/usr/bin/b", "--x", exe="/usr/bin/b")

        assert {
            20: ("torch", "rank", 0),
            21: ("torch", "dataloader", None),
        } == found(fake_proc, r"b\.py")
        assert {30: ("pattern", "rank", None)} == found(fake_proc, "bin/b ")
        assert {20, 30} == found(
            fake_proc, r"b\.py", "^/usr/bin/b", include_children=False
        ).keys()
        assert {20, 21} == found(fake_proc, r"b\.py").keys()
        assert {} == found(fake_proc, "nothing")

    def test_unknown(self, fake_proc):
        """
        What only the pattern knows is a rank, and its children are its own;
        if they turn out to be ranks, it is their launcher.
        """
        fake_proc.add(10, PY, "mine.py", environ={})
        fake_proc.add(11, PY, "mine.py", parent=10, environ={})
        fake_proc.add(20, PY, "mine2.py", environ={})
        fake_proc.add(
            21, *SPAWN, parent=20, environ={}, maps=TORCH, threads=GLOO
        )

        assert {
            10: ("pattern", "rank", None),
            21: ("multiprocessing", "rank", None),
            20: ("multiprocessing", "launcher", None),
            11: ("pattern", "dataloader", None),
        } == found(fake_proc, "mine")

    def test_starter(self, fake_proc):
        """
        A program that starts the ranks is no rank, though its command line
        names theirs.
        """
        fake_proc.add(10, PY, "launch.py", "mine.py", environ={})
        for rank in (0, 1):
            fake_proc.add(
                11 + rank,
                *(PY, "mine.py"),
                parent=10,
                environ=ranks_env(rank, 2),
                maps=TORCH,
            )

        assert {"launcher", "rank"} == {
            role for _, role, _ in found(fake_proc, r"mine\.py").values()
        }
        assert "launcher" == found(fake_proc, r"mine\.py")[10][1]

    def test_collectors(self, fake_proc):
        """
        Whoever looks at the job as we do is no part of it, nor its tools.
        """
        fake_proc.add(10, PY, "mine.py", environ={})
        fake_proc.add(20, PY, "-m", "distdebug", "stacks", "--pattern", "mine")
        fake_proc.add(21, "/usr/bin/gdb", "-p", "mine.py", parent=20)
        fake_proc.add(30, PY, "-I", "/x/guard_program.py", "10", "mine.py")

        assert {10} == found(fake_proc, "mine").keys()

    @pytest.mark.parametrize(
        "arguments",
        [
            ("-m", "distdebug", "watch"),
            ("-P", "-m", "distdebug.watching.child"),
            ("-m", "distdebug.nodes.child"),
            ("/venv/bin/distdebug", "snapshot"),
        ],
    )
    def test_other_collectors(self, fake_proc, arguments):
        """
        Whoever collects is no part of a job, also if a rank has started it.
        """
        env = ranks_env(0, 1)
        fake_proc.add(10, PY, "mine.py", environ=env, maps=TORCH)
        fake_proc.add(20, PY, *arguments, parent=10, environ=env, maps=TORCH)
        fake_proc.add(21, PY, "mine.py", parent=20, environ=env, maps=TORCH)

        assert {10} == found(fake_proc).keys()
        assert {10} == found(fake_proc, "mine|distdebug").keys()

    def test_no_collector(self, fake_proc):
        """
        What only has a similar name may be a rank.
        """
        fake_proc.add(
            10,
            *(PY, "-m", "my_distdebug.watching.child"),
            environ=ranks_env(0, 1),
            maps=TORCH,
        )

        assert {10} == found(fake_proc).keys()

    def test_one_text(self, fake_proc):
        """
        A single pattern may be given as it is.
        """
        fake_proc.add(10, PY, "mine.py", environ={})

        (worker,) = find_workers(r"mine\.py", root=fake_proc.root)

        assert 10 == worker.pid

    @pytest.mark.parametrize("pattern", ["(", "*", "[a", "a{99999999999}"])
    def test_bad(self, fake_proc, pattern):
        """
        What is no pattern is refused, in words that survive a pipe.
        """
        with pytest.raises(PatternError) as caught:
            find_workers([pattern], root=fake_proc.root)

        copy = pickle.loads(pickle.dumps(caught.value))

        assert repr(pattern) in str(copy)
        assert isinstance(copy, ValueError)
        assert "put a" in caught.value.remedy


class TestHostile:
    def test_titles(self, fake_proc):
        """
        Titles reach a terminal without their escapes, and not at any length.
        """
        fake_proc.add(10, "sglang::scheduler\x1b[2J_TP1\n\x07", environ={})
        fake_proc.add(11, "sglang::scheduler" + "x" * 10**5, environ={})

        first, second = sorted(
            find_workers(root=fake_proc.root), key=lambda w: w.pid
        )

        assert "sglang::scheduler_TP1" == first.title
        assert len(second.title) <= 4096

    def test_long(self, fake_proc):
        """
        A command line of 100,000 characters is read up to its rank.
        """
        fake_proc.add(
            20,
            PY,
            "t.py",
            "x" * 50_000,
            "--rank=2",
            "y" * 50_000,
            environ={},
            maps=TORCH,
        )

        assert {20: ("torch", "rank", 2)} == found(fake_proc)

    def test_circle(self, fake_proc):
        """
        Processes that are each other's parents end no search.
        """
        fake_proc.add(10, PY, "t.py", parent=11, start=5, environ={})
        fake_proc.add(11, PY, "t.py", parent=10, start=5, environ={})
        fake_proc.add(12, PY, "t.py", parent=12, start=5, environ={})

        assert {} == found(fake_proc)
        assert worker_of(10, fake_proc.root).pid == 10

    def test_reused_parent(self, fake_proc):
        """
        A process that is younger than its child is not its parent.
        """
        fake_proc.add(10, PY, "/x/torchrun", start=900, environ={})
        fake_proc.add(20, PY, "t.py", parent=10, start=100, environ={})

        assert {10} == found(fake_proc).keys()

    def test_gone(self, fake_proc, monkeypatch):
        """
        A process that ends, or another with its number, is left out.
        """
        folder = fake_proc.add(20, "sglang::scheduler_TP0", environ={})
        fake_proc.add(21, "sglang::scheduler_TP1", environ={})

        def look(pid, root):
            (folder / "stat").unlink(missing_ok=True)
            return read_evidence(pid, root)

        monkeypatch.setattr(survey, "read_evidence", look)

        assert {21} == found(fake_proc).keys()

    def test_own_line(self):
        """
        Neither this process nor what it descends from is found.
        """
        above = {p.pid for p in psutil.Process().parents()}

        got = {w.pid for w in find_workers(["."])}

        assert not got & {os.getpid(), *above}


class TestAncestors:
    @pytest.fixture(name="job")
    def _job(self, fake_proc):
        """
        A rank that has started this process, which looks, and another rank.
        """
        line = (PY, "t.py")
        fake_proc.add(10, PY, "/x/torchrun", "t.py", environ={})
        for rank in (0, 1):
            fake_proc.add(
                20 + rank,
                *line,
                parent=10,
                environ=ranks_env(rank, 2),
                maps=TORCH,
            )
        fake_proc.add(
            os.getpid(),
            *line,
            parent=20,
            environ=ranks_env(0, 2),
            maps=TORCH,
            start=900,
        )
        Path(fake_proc.root, "self").symlink_to(str(os.getpid()))
        return fake_proc

    def test_elsewhere(self, job):
        """
        Where this process is not, somebody else has its number.
        """
        Path(job.root, "self").unlink()

        assert {20, 21, os.getpid()} <= found(job, r"t\.py").keys()

    def test_wanted(self, job):
        """
        Whoever is started by a rank can look at that one too.
        """
        got = found(job, include_ancestors=True)

        assert {
            10: ("torchrun", "launcher", None),
            20: ("torchrun", "rank", 0),
            21: ("torchrun", "rank", 1),
        } == got

    def test_default(self, job):
        """
        Otherwise they are shells that name what is looked for.
        """
        assert {21} == found(job).keys()
        assert {21} == found(job, r"t\.py").keys()

    def test_with_pattern(self, job):
        """
        A pattern chooses among them, and never the one that looks.
        """
        got = found(job, r"python t\.py", include_ancestors=True)

        assert {20, 21} == got.keys()


class TestWorkerOf:
    def test_known(self, fake_proc):
        """
        A process is judged by those around it, as in a search.
        """
        fake_proc.add(10, PY, "/x/torchrun", environ={})
        fake_proc.add(20, PY, "t.py", parent=10, environ=ranks_env(1, 2))
        fake_proc.add(30, PY, "t.py", parent=20, name="pt_data_worker")

        workers = [worker_of(pid, fake_proc.root) for pid in (10, 20, 30)]

        assert [
            ("torchrun", "launcher", None),
            ("torchrun", "rank", 1),
            ("torchrun", "dataloader", None),
        ] == [(w.framework, w.role, w.rank) for w in workers]

    def test_unknown(self, fake_proc):
        """
        Whatever was named is there, and nothing that is not.
        """
        fake_proc.add(10, "sleep", "9", exe="/usr/bin/sleep")

        assert "pattern" == worker_of(10, fake_proc.root).framework
        assert worker_of(11, fake_proc.root) is None

    def test_twin(self, fake_proc):
        """
        Who has inherited the rank of another is there, if it was named.
        """
        fake_proc.add(5, PY, "run.py", environ={})
        pod = ranks_env(0, 2)
        fake_proc.add(10, PY, "metrics.py", parent=5, environ=pod)
        fake_proc.add(20, PY, "t.py", parent=5, environ=pod, maps=TORCH)

        worker = worker_of(10, fake_proc.root)

        assert ("pattern", "rank", 0) == (
            worker.framework,
            worker.role,
            worker.rank,
        )

    @pytest.mark.parametrize(
        "arguments", [TRACKER, FORK_SERVER, ()], ids=["tracker", "server", "-"]
    )
    def test_left_out_of_searches(self, fake_proc, arguments):
        """
        Nobody who lives is missing, because a search would not show them.
        """
        fake_proc.add(10, PY, "t.py", environ=ranks_env(0, 1), maps=TORCH)
        fake_proc.add(20, *arguments, parent=10)

        assert 20 not in found(fake_proc)
        assert 20 == worker_of(20, fake_proc.root).pid
