"""
Workers of every framework, on nodes that do not exist.
"""

from __future__ import annotations

import os
import pickle
import threading

from pathlib import Path

import psutil
import pytest

from distdebug.errors import PatternError
from distdebug.processes import find_workers, find_workers_by_pid


PY = "/venv/bin/python"
MPI = "OMPI_COMM_WORLD"
MP = "from multiprocessing"
LINES = {
    "SPAWN": (
        PY,
        *("-c", f"{MP}.spawn import spawn_main; spawn_main(tracker_fd=5)"),
        "--multiprocessing-fork",
    ),
    "TRACKER": (PY, "-c", f"{MP}.resource_tracker import main;main(3)"),
    "FORK_SERVER": (PY, "-c", f"{MP}.forkserver import main; main(3)"),
    "COMPILER": (
        PY,
        "/lib/torch/_inductor/compile_worker/__main__.py",
        "--pickler=torch._inductor.x",
    ),
}
BOTH = [
    "20 multiprocessing rank -",
    "21 multiprocessing rank -",
    "10 multiprocessing launcher -",
]
GLOO = ["gloo_tcp_loop", "pt_gloo_runloop"]


def rank_of(rank, size):
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
    }


def add(fake_proc, scene):
    """
    Add processes, one a line: number, parent, command line, and behind a bar
    what is known of them: variables, ``rank:1/2``, ``torch``, ``gloo`` (its
    threads), ``hidden`` (its environment), or what :class:`FakeProc` takes.
    """
    for line in filter(None, map(str.strip, scene.splitlines())):
        shown, _, facts = line.partition("|")
        pid, parent, *words = shown.split()
        options = {"environ": {}, "parent": int(parent)}
        for fact in facts.split():
            key, _, value = fact.partition(":")
            variable, sign, text = fact.partition("=")
            if key == "rank":
                options["environ"] |= rank_of(*value.split("/"))
            elif fact == "torch":
                options["maps"] = "libtorch_cpu.so"
            elif fact == "gloo":
                options["threads"] = GLOO
            elif fact == "hidden":
                options["environ"] = None
            elif sign:
                options["environ"][variable] = text
            else:
                options[key] = int(value) if key == "start" else value
        known = LINES.get(words[0]) if words else None
        arguments = known or [PY if w == "python" else w for w in words]
        fake_proc.add(int(pid), *arguments, **options)


def text_of(worker):
    """
    What a worker is, in a line.
    """
    rank = "-" if worker.rank is None else worker.rank
    return f"{worker.pid} {worker.framework} {worker.role} {rank}"


@pytest.fixture
def found(fake_proc):
    """
    Gives a line for each worker of a scene.
    """

    def give(scene="", *patterns, **options):
        add(fake_proc, scene)
        workers = find_workers(patterns, root=fake_proc.root, **options)
        return [text_of(worker) for worker in workers]

    return give


def pids(lines):
    """
    The numbers of workers.
    """
    return [int(line.split()[0]) for line in lines]


@pytest.fixture
def one(fake_proc):
    """
    Gives one worker of a scene.
    """

    def give(pid, scene=""):
        add(fake_proc, scene)
        workers = find_workers(root=fake_proc.root)
        return next(w for w in workers if w.pid == pid)

    return give


class TestServers:
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
    def test_ranks(self, one, title):
        """
        Processes that run the model are ranks, in any spelling.
        """
        worker = one(20, f"20 1 {title} | exe:{PY}")

        assert ("rank", title) == (worker.role, worker.title)

    def test_inherited_rank(self, one):
        """
        The rank is that of the title, whatever Slurm calls the node.
        """
        node = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_ID=9"
        worker = one(
            21,
            f"""
            10 1 python -m sglang.launch_server | {node}
            20 10 sglang::scheduler_TP0_PP1 | torch {node}
            21 10 sglang::scheduler_TP1_PP1 | torch {node}
            """,
        )

        assert worker.rank is None
        assert (("tp", 1), ("pp", 1)) == worker.coordinates
        assert ("title", "9") == (worker.source, worker.job)

    def test_wrappers(self, fake_proc, found):
        """
        A process that has the command line of a worker in its own is none.
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

        assert [] == found()
        assert [] == found("", "sglang")
        assert ["110 pattern rank -"] == found("", "^pgrep")

    def test_vllm(self, found, one):
        """
        An engine is a server if it has workers.
        """
        assert [
            "20 vllm rank 0",
            "21 vllm rank 1",
            "11 vllm server -",
            "13 vllm server -",
            "12 vllm server -",
        ] == found(
            f"""
            10 1 /venv/bin/vllm serve m | exe:{PY}
            11 10 VLLM::APIServer_0
            12 10 VLLM::EngineCore_DP1
            13 10 VLLM::DPCoordinator
            20 12 VLLM::Worker_TP0
            21 12 VLLM::Worker_TP1
            """
        )
        assert (("dp", 1),) == one(12).coordinates

    def test_engine(self, found):
        """
        Without workers it runs the model itself.
        """
        scene = "12 1 VLLM::EngineCore\n13 12 VLLM::EngineCore"

        assert "12 vllm rank -" in found(scene)

    def test_ray(self, found):
        """
        Actors are ranks, also idle workers are shown, and Ray's own daemons
        are not.
        """
        node = "SLURM_PROCID=3 SLURM_NTASKS=4"

        assert [
            "21 ray rank 1",
            "22 ray rank -",
            "20 ray server -",
            "23 ray server -",
        ] == found(
            f"""
            10 1 /ray/raylet/raylet --x | hidden exe:/ray/raylet
            11 1 /ray/gcs/gcs_server | hidden exe:/ray/gcs_server
            12 1 python /ray/dashboard/dashboard.py | exe:{PY}
            20 10 ray::IDLE | {node}
            21 10 ray::TrainWorker | rank:1/2 {node}
            22 10 ray::Actor.run | {node}
            23 10 ray::ServeController | {node}
            """
        )


class TestLaunchers:
    @pytest.mark.parametrize(
        ("line", "framework"),
        [
            ("/venv/bin/torchrun --nproc-per-node 2 t.py", "torchrun"),
            ("-m torch.distributed.run t.py", "torchrun"),
            ("-m torch.distributed.launch t.py", "torchrun"),
            ("/lib/torch/distributed/run.py t.py", "torchrun"),
            ("/venv/bin/accelerate launch t.py", "accelerate"),
            ("-m accelerate.commands.launch t.py", "accelerate"),
            ("/venv/bin/deepspeed t.py", "deepspeed"),
            ("-m deepspeed.launcher.launch t.py", "deepspeed"),
        ],
    )
    def test_children(self, found, line, framework):
        """
        Children of a launcher are ranks; those of ranks are not.
        """
        assert [
            f"20 {framework} rank 1",
            f"10 {framework} launcher -",
            f"30 {framework} dataloader -",
            f"31 {framework} dataloader -",
            f"32 {framework} compile -",
            f"33 {framework} compile -",
            f"34 {framework} child -",
            f"35 {framework} child -",
        ] == found(
            f"""
            10 1 python {line}
            20 10 python -u t.py | rank:1/2 torch
            30 20 python -u t.py | rank:1/2 torch name:pt_data_worker
            31 20 SPAWN | rank:1/2 torch
            32 20 COMPILER | rank:1/2
            33 32 python x | rank:1/2 torch
            34 20 python tool.py | rank:1/2
            35 20 git status | hidden exe:/usr/bin/git
            36 20 TRACKER | rank:1/2
            37 33 ninja | hidden exe:/usr/bin/ninja
            """
        )
        assert [20, 10] == pids(found("", include_children=False))

    def test_fields(self, one):
        """
        A rank knows its place, and where that was learned.
        """
        worker = one(
            20,
            """
            10 1 python /venv/bin/torchrun t.py
            20 10 python t.py | rank:1/2 TORCHELASTIC_RUN_ID=run start:77
            """,
        )

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

    @pytest.mark.parametrize(
        ("scene", "expected"),
        [
            # Shells between a launcher and its ranks do not matter, and are
            # none.
            (
                """
                10 1 python /venv/bin/torchrun run.sh
                15 10 bash run.sh
                16 15 numactl python t.py
                20 16 python t.py | rank:0/1
                """,
                ["20 torchrun rank 0", "10 torchrun launcher -"],
            ),
            # A container's variables of the node do not make its launcher a
            # rank, nor what else runs in it.
            (
                """
                5 1 python start.py | rank:1/2
                10 5 python /venv/bin/torchrun | rank:1/2
                20 10 python t.py | rank:4/8 torch
                30 1 python -m ipykernel_launcher | rank:1/2
                """,
                [
                    "20 torchrun rank 4",
                    "5 torch launcher -",
                    "10 torchrun launcher -",
                ],
            ),
            # Of two with the same rank, the one with torch is meant.
            (
                """
                10 1 python metrics.py | rank:0/2
                20 1 python t.py | rank:0/2 torch
                """,
                ["20 torch rank 0"],
            ),
            # A program that calls torch's launcher is known by its first
            # thread, or by the ranks that come from it.
            (
                """
                10 1 python go.py | name:pt_elastic
                20 10 python t.py | rank:0/1
                """,
                ["20 torchrun rank 0", "10 torchrun launcher -"],
            ),
            (
                """
                10 1 python go.py
                20 10 python t.py | rank:0/1 TORCHELASTIC_RUN_ID=r
                """,
                ["20 torchrun rank 0", "10 torchrun launcher -"],
            ),
            # A rank that died is shown as long as nobody asked why.
            (
                """
                10 1 python /venv/bin/torchrun t.py
                20 10 | hidden name:python state:Z
                21 2 | hidden name:kworker/0:1 state:I
                22 1 | hidden name:sglang::schedul state:Z
                23 1 | hidden name:sh state:Z
                """,
                [
                    "20 torchrun rank -",
                    "22 sglang rank -",
                    "10 torchrun launcher -",
                ],
            ),
            # A program that a rank started is not a second one.
            (
                """
                20 1 python t.py | rank:0/1
                21 20 sh -c x | rank:0/1 exe:/sh
                22 21 python x.py | rank:0/1
                """,
                ["20 torch rank 0", "21 torch child -", "22 torch child -"],
            ),
            # Schedulers are ranks, and the rest serves requests.
            (
                """
                10 1 python -m sglang.launch_server --tp 2
                20 10 sglang::scheduler_TP1 | torch
                21 10 sglang::scheduler_TP0 | torch
                22 10 sglang::detokenizer | torch
                23 10 sglang::data_parallel_controller | torch
                """,
                [
                    "21 sglang rank 0",
                    "20 sglang rank 1",
                    "10 sglang server -",
                    "22 sglang server -",
                    "23 sglang server -",
                ],
            ),
            # Without titles, the server is known by its command line, and
            # its workers by torch.
            (
                """
                10 1 python -m dynamo.sglang --tp 2
                20 10 SPAWN | torch
                21 10 SPAWN
                22 10 TRACKER
                23 10 nvidia-smi | hidden
                """,
                [
                    "20 sglang rank -",
                    "10 sglang server -",
                    "21 sglang child -",
                ],
            ),
            # A forked child has the title of its parent, and is no rank.
            (
                """
                20 1 ray::RayTrainWorker | rank:0/1 torch
                21 20 ray::RayTrainWorker | rank:0/1 torch name:pt_data_worker
                22 20 ray::RayTrainWorker | torch
                """,
                [
                    "20 ray rank 0",
                    "21 ray dataloader -",
                    "22 ray dataloader -",
                ],
            ),
            # Ranks that were told so at run time are known by number.
            (
                """
                10 1 python t.py
                20 10 SPAWN | rank:0/2
                21 10 SPAWN | rank:1/2
                """,
                [
                    "20 multiprocessing rank 0",
                    "21 multiprocessing rank 1",
                    "10 multiprocessing launcher -",
                ],
            ),
            # What a fork server starts belongs to what started the server.
            (
                """
                10 1 python t.py | torch
                11 10 FORK_SERVER
                20 11 FORK_SERVER | torch gloo
                21 11 FORK_SERVER | torch gloo
                """,
                BOTH,
            ),
            # A child that has peers of its own is neither a rank nor a
            # reader.
            (
                """
                20 1 python t.py | rank:0/2 torch gloo
                30 20 SPAWN | rank:0/2 torch gloo
                """,
                ["20 torch rank 0", "30 torch child -"],
            ),
        ],
        ids=[
            *("wrapped", "pod", "twins", "first thread", "by its ranks"),
            *("zombie", "inherited"),
            *("sglang", "fallback", "data loader"),
            *("own rank", "fork server", "checkpoint"),
        ],
    )
    def test_scenes(self, found, scene, expected):
        """
        What the parents of a process are shows what it is.
        """
        assert expected == found(scene)

    def test_unreadable(self, one):
        """
        Where the environment may not be read, the rank may be in the command
        line, and is unknown otherwise.
        """
        worker = one(
            20,
            """
            10 1 python /venv/bin/torchrun t.py | hidden
            20 10 python t.py --local-rank=3 | hidden
            21 10 python t.py | hidden
            """,
        )

        other = one(21)
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
            ("t.py", "RANK=1 WORLD_SIZE=2", "torch rank 1"),
            ("t.py", "RANK=0 WORLD_SIZE=1", "torch rank 0"),
            ("/x/pretrain_gpt.py", "RANK=1 WORLD_SIZE=2", "megatron rank 1"),
            ("t.py", "SLURM_PROCID=1 SLURM_NTASKS=2", "slurm rank 1"),
            (
                "t.py",
                "RANK=1 WORLD_SIZE=2 SLURM_PROCID=1",
                "slurm rank 1",
            ),
            (
                "t.py",
                f"{MPI}_RANK=1 {MPI}_SIZE=2",
                "mpi rank 1",
            ),
            (
                "t.py",
                "RANK=1 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x",
                "torchrun rank 1",
            ),
        ],
    )
    def test_ranks(self, found, line, env, expected):
        """
        A program in Python with a rank of its own is one.
        """
        scene = f"20 1 python {line} | {env}\n21 1 bash {line} | {env}"

        assert [f"20 {expected}"] == found(f"{scene} exe:/bin/bash")

    @pytest.mark.parametrize(
        "line",
        [
            "t.py | RANK=1",
            "t.py | RANK=one WORLD_SIZE=2",
            "t.py | SLURM_PROCID=0 SLURM_NTASKS=1",
            "-m ipykernel_launcher | RANK=0 WORLD_SIZE=2",
            "/venv/bin/pytest tests | RANK=0 WORLD_SIZE=2",
            "-m pip install sglang | RANK=0 WORLD_SIZE=2",
            "-m debugpy.adapter | RANK=0 WORLD_SIZE=2",
            "/x/debugpy/adapter --for | RANK=0 WORLD_SIZE=2",
            "-m distdebug stacks | RANK=0 WORLD_SIZE=2",
            "/x/distdebug/__main__.py | RANK=0 WORLD_SIZE=2",
            "-m http.server | RANK=0 WORLD_SIZE=2",
        ],
    )
    def test_others(self, found, line):
        """
        Less than that makes no rank, and tools are none.
        """
        assert [] == found(f"20 1 python {line}")

    @pytest.mark.parametrize(
        ("env", "size"),
        [
            # The only task of Slurm is a rank if it has torch.
            ("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NNODES=1", 1),
            ("SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=2", None),
            ("SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_NNODES=1", 4),
            ("RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=x", None),
            ("SLURM_PROCID=1", None),
            (f"{MPI}_RANK=1 {MPI}_SIZE=4 {MPI}_LOCAL_SIZE=4", 4),
        ],
    )
    def test_local_world_size(self, one, env, size):
        """
        How many ranks are on this node is known if they are in sequence.
        """
        worker = one(20, f"20 1 python t.py | torch {env}")

        assert ("rank", size) == (worker.role, worker.local_world_size)


class TestMultiprocessing:
    @staticmethod
    def spawn(line="SPAWN", facts="torch", starter="torch"):
        """
        A program that started two processes and waits for them.
        """
        return f"""
            10 1 python t.py | {starter}
            11 10 TRACKER
            20 10 {line} | {facts}
            21 10 {line} | {facts}
            """

    @staticmethod
    def connect(fake_proc, *numbers):
        """
        Let processes have a connection, which they may have inherited.
        """
        for pid in numbers:
            folder = fake_proc.folder(pid)
            (folder / "fd/3").symlink_to("socket:[7]")
            (folder / "net/tcp").write_text(
                "sl local\n0: 0:1 0:2 01 0:0 0:0 0 0 0 7 1\n"
            )

    @pytest.mark.parametrize("line", ["SPAWN", "python t.py"])
    def test_threads(self, found, line):
        """
        Those that carry collectives are ranks, and what started them waits.
        """
        assert BOTH == found(self.spawn(line, "torch gloo"))

    def test_one(self, found):
        """
        One that is not as far as the others is a rank like them.
        """
        more = "22 10 SPAWN | torch gloo\n23 10 SPAWN"

        assert [20, 21, 22, 10] == pids(found(f"{self.spawn()}\n{more}"))

    def test_connection(self, found, fake_proc):
        """
        Those that wait where ranks meet are ranks.
        """
        found(self.spawn())
        self.connect(fake_proc, 20, 21)

        assert BOTH == found()

    @pytest.mark.parametrize("name", ["python", "pt_data_worker"])
    def test_pool(self, found, fake_proc, name):
        """
        Processes without peers are none, even with torch; nor are the data
        loaders of a program that is alone.
        """
        found(self.spawn(facts=f"torch name:{name}"))
        (fake_proc.folder(20) / "fd/3").symlink_to("/data")

        assert [] == found()

    def test_node_rank(self, found, one):
        """
        What started them is not a rank because its container says so.
        """
        scene = self.spawn(
            facts="torch gloo rank:1/2", starter="torch rank:1/2"
        )

        assert [
            "20 torch rank -",
            "21 torch rank -",
            "10 torch launcher -",
        ] == found(scene)
        assert one(20).world_size is None

    def test_world_size(self, one):
        """
        The size that the parent set is that of its ranks.
        """
        size = "torch WORLD_SIZE=2"

        worker = one(20, self.spawn(facts=f"gloo {size}", starter=size))

        assert 2 == worker.world_size

    def test_rank_in_fork(self, found, fake_proc):
        """
        A forked child that inherited its sockets has no peers.
        """
        found(
            """
            20 1 python t.py | rank:0/2 torch
            30 20 python t.py | rank:0/2 torch
            """
        )
        self.connect(fake_proc, 20, 30)

        assert ["20 torch rank 0", "30 torch dataloader -"] == found()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t.py | gloo", "torch rank -"),
        ("t.py --rank 3 --world-size 8 |", "torch rank 3"),
        ("t.py --local_rank=1 |", "torch rank -"),
        ("t.py | name:pt_tcpstore_uv", None),
        ("-m ipykernel_launcher | gloo", None),
        ("-m jupyterlab |", None),
        ("/venv/bin/jupyter-lab |", None),
        ("-m pylsp |", None),
    ],
)
def test_alone(found, line, expected):
    """
    To have torch loaded is not enough to be a rank.
    """
    scene = f"20 1 python {line} torch HOME=/\n21 1 python {line}"

    assert ([f"20 {expected}"] if expected else []) == found(scene)


class TestPatterns:
    def test_only(self, found):
        """
        Only what matches is found, with what it started.
        """
        b, reader = "20 torch rank 0", "21 torch dataloader -"
        scene = """
            10 1 python a.py | rank:0/1 torch
            20 1 python b.py | rank:0/1 torch
            21 20 SPAWN | rank:0/1 torch
            30 1 /usr/bin/b --x | hidden exe:/usr/bin/b
            """

        assert [b, reader] == found(scene, r"b\.py")
        assert ["30 pattern rank -"] == found("", "bin/b ")
        assert [20, 30] == pids(
            found("", r"b\.py", "^/usr/bin/b", include_children=False)
        )
        assert [] == found("", "nothing")

    def test_unknown(self, found):
        """
        What only the pattern knows is a rank, and its children are its own;
        if they turn out to be ranks, it is their launcher.
        """
        scene = """
            10 1 python mine.py
            11 10 python mine.py
            20 1 python mine2.py
            21 20 SPAWN | torch gloo
            """

        assert [
            "10 pattern rank -",
            "21 multiprocessing rank -",
            "20 multiprocessing launcher -",
            "11 pattern dataloader -",
        ] == found(scene, "mine")

    def test_starter(self, found):
        """
        A program that starts the ranks is no rank, though its command line
        names theirs.
        """
        scene = """
            10 1 python launch.py mine.py
            11 10 python mine.py | rank:0/2 torch
            12 10 python mine.py | rank:1/2 torch
            """

        assert ["rank", "rank", "launcher"] == [
            line.split()[2] for line in found(scene, r"mine\.py")
        ]

    def test_collectors(self, found):
        """
        What looks at the job as we do is no part of it, nor its tools.
        """
        scene = """
            10 1 python mine.py
            20 1 python -m distdebug stacks --pattern mine | hidden
            21 20 /usr/bin/gdb -p mine.py | hidden
            30 1 python -I /x/guard_program.py 10 mine.py | hidden
            """

        assert [10] == pids(found(scene, "mine"))

    @pytest.mark.parametrize(
        "line",
        [
            "-m distdebug watch",
            "-P -m distdebug.watching.child",
            "-m distdebug.nodes.child",
            "/venv/bin/distdebug snapshot",
        ],
    )
    def test_other_collectors(self, found, line):
        """
        What collects is no part of a job, also if a rank has started it.
        """
        scene = f"""
            10 1 python mine.py | rank:0/1 torch
            20 10 python {line} | rank:0/1 torch
            21 20 python mine.py | rank:0/1 torch
            """

        assert [10] == pids(found(scene))
        assert [10] == pids(found("", "mine|distdebug"))

    def test_no_collector(self, found):
        """
        What only has a similar name may be a rank.
        """
        line = "-m my_distdebug.watching.child | rank:0/1 torch"

        assert [10] == pids(found(f"10 1 python {line}"))

    def test_one_text(self, fake_proc):
        """
        A single pattern may be given as it is.
        """
        add(fake_proc, "10 1 python mine.py")

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

    def test_long(self, found):
        """
        A command line of 100,000 characters is read up to its rank.
        """
        line = f"t.py {'x' * 50_000} --rank=2 {'y' * 50_000}"

        assert ["20 torch rank 2"] == found(f"20 1 python {line} | torch")

    def test_circle(self, found, fake_proc):
        """
        Processes that are each other's parents end no search.
        """
        assert [] == found(
            """
            10 11 python t.py | start:5
            11 10 python t.py | start:5
            12 12 python t.py | start:5
            """
        )
        assert [10] == [
            w.pid for w in find_workers_by_pid([10], fake_proc.root)
        ]

    def test_reused_parent(self, found):
        """
        A process that is younger than its child is not its parent.
        """
        scene = "10 1 python /x/torchrun | start:900\n"

        assert [10] == pids(found(f"{scene}20 10 python t.py | start:100"))

    def test_gone(self, found, fake_proc):
        """
        A process that ends while it is looked at is left out.
        """
        add(fake_proc, "20 1 sglang::scheduler_TP0\n21 1 sglang::scheduler")
        folder = fake_proc.folder(20)
        (folder / "maps").unlink()
        os.mkfifo(folder / "maps")

        def end():
            with (folder / "maps").open("wb"):
                (folder / "stat").unlink()

        thread = threading.Thread(target=end)
        thread.start()
        lines = found()
        thread.join()

        assert [21] == pids(lines)

    def test_own_line(self):
        """
        Neither this process nor what it descends from is found.
        """
        above = {p.pid for p in psutil.Process().parents()}

        got = {w.pid for w in find_workers(["."])}

        assert not got & {os.getpid(), *above}


class TestAncestors:
    @pytest.fixture(autouse=True)
    def _job(self, fake_proc):
        """
        A rank that has started this process, which looks, and another rank.
        """
        add(
            fake_proc,
            f"""
            10 1 python /x/torchrun t.py
            20 10 python t.py | rank:0/2 torch
            21 10 python t.py | rank:1/2 torch
            {os.getpid()} 20 python t.py | rank:0/2 torch start:900
            """,
        )
        Path(fake_proc.root, "self").symlink_to(str(os.getpid()))

    def test_elsewhere(self, found, fake_proc):
        """
        Where this process is not, another one has its number.
        """
        Path(fake_proc.root, "self").unlink()

        assert {20, 21, os.getpid()} <= {*pids(found("", r"t\.py"))}

    def test_wanted(self, found):
        """
        What is started by a rank can look at that one too; a pattern chooses
        among them, and never the one that looks.
        """
        assert [
            "20 torchrun rank 0",
            "21 torchrun rank 1",
            "10 torchrun launcher -",
        ] == found(include_ancestors=True)
        assert [20, 21] == pids(
            found("", r"python t\.py", include_ancestors=True)
        )

    def test_default(self, found):
        """
        Otherwise they are shells that name what is looked for.
        """
        assert [21] == pids(found())
        assert [21] == pids(found("", r"t\.py"))


class TestWorkersOf:
    @pytest.mark.parametrize(
        ("scene", "expected"),
        [
            # A process is judged by those around it, as in a search.
            (
                """
                10 1 python /x/torchrun
                20 10 python t.py | rank:1/2
                30 20 python t.py | hidden name:pt_data_worker
                """,
                [
                    "20 torchrun rank 1",
                    "10 torchrun launcher -",
                    "30 torchrun dataloader -",
                ],
            ),
            # What was named is there, and nothing that is not.
            (
                "10 1 sleep 9 | hidden exe:/usr/bin/sleep",
                ["10 pattern rank -"],
            ),
            # So is what has inherited the rank of another.
            (
                """
                5 1 python run.py
                10 5 python metrics.py | rank:0/2
                40 5 python t.py | rank:0/2 torch
                """,
                ["10 pattern rank 0"],
            ),
        ],
        ids=["known", "unknown", "twin"],
    )
    def test_named(self, fake_proc, scene, expected):
        """
        Processes that were named are described, whatever they are.
        """
        add(fake_proc, scene)

        workers = find_workers_by_pid([30, 20, 10], fake_proc.root)

        assert expected == [text_of(worker) for worker in workers]

    @pytest.mark.parametrize("line", ["TRACKER", "FORK_SERVER", ""])
    def test_left_out_of_searches(self, found, fake_proc, line):
        """
        What lives is not missing because a search would not show it.
        """
        scene = f"10 1 python t.py | rank:0/1 torch\n20 10 {line} | hidden"

        assert 20 not in pids(found(scene))
        assert [20] == [
            w.pid for w in find_workers_by_pid([20], fake_proc.root)
        ]
