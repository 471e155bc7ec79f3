"""
Starts Ray on this node, and workers under nsys.

``nsight_ray.py CASE OUTPUT_DIR`` prints one line of JSON with what it saw.
``RAY_TMPDIR`` says where Ray puts its files.
"""

import json
import os
import signal
import sys
import time

from pathlib import Path

import psutil
import ray

from distdebug.nsight import (
    nsight_runtime_env,
    patch_ray_nsight,
    ray_nsight_status,
)


PYTHON = f"{sys.executable} -X nsight=kept"
ENDINGS = ("exit_actor", "kill", "del", "_exit", "abort", "driver")


class Worker:
    """
    Is profiled.
    """

    def look(self):
        """
        What is this process?
        """
        return {
            "pid": os.getpid(),
            "kept": sys._xoptions.get("nsight"),
            "steps": os.environ.get("DISTDEBUG_NSYS_PROFILE_STEP_RANGE"),
        }

    def mark(self):
        """
        Leave a range in the profile.
        """
        from distdebug.nsight import nvtx

        with nvtx("a range of ours"):
            time.sleep(0.05)

    def end(self, how):
        """
        End in this way.
        """
        if how == "exit_actor":
            ray.actor.exit_actor()
        elif how == "_exit":
            os._exit(3)
        elif how == "abort":
            os.abort()


def start(register_s):
    """
    Start a node, whose raylet gives up workers that have not come by then.
    """
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
        _system_config={"worker_register_timeout_seconds": register_s},
    )


def worker(name, **options):
    """
    A worker of this name under nsys.
    """
    env = nsight_runtime_env(
        name,
        patterns="policy*",
        base={"py_executable": PYTHON},
        extra_options={"trace": "nvtx"},
        **options,
    )
    return ray.remote(Worker).options(num_cpus=1, runtime_env=env).remote()


def end(actor, how):
    """
    Let a worker end.
    """
    if how == "kill":
        ray.kill(actor)
    elif how != "del":
        ref = actor.end.remote(how)
        if how != "driver":
            try:
                ray.get(ref, timeout=60)
            except ray.exceptions.RayError:
                return


def endings(output_dir):
    """
    Six workers with six names at once, which end in six ways.
    """
    workers = {how: worker(f"policy-{how}") for how in ENDINGS}
    looks = ray.get([w.look.remote() for w in workers.values()], timeout=150)
    ray.get([w.mark.remote() for w in workers.values()], timeout=60)
    for how in ENDINGS:
        end(workers[how] if how == "driver" else workers.pop(how), how)
    there = worker("policy-there", output_dir=output_dir, step_range="3:6")
    return {
        "pids": {
            f"policy-{how}": look["pid"]
            for how, look in zip(ENDINGS, looks, strict=True)
        },
        "kept": [look["kept"] for look in looks],
        "there": ray.get(there.look.remote(), timeout=90),
    }


def node_dies(_):
    """
    The node, and then this process, is killed under a worker.
    """
    actor = worker("policy")
    seen = ray.get(actor.look.remote(), timeout=90)
    session = ray._private.worker._global_node.get_session_dir_path()
    print(json.dumps({"session": session, **seen}), flush=True)
    for process in psutil.Process().children(recursive=True):
        if process.name() in {"raylet", "gcs_server"}:
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def plugin(_):
    """
    A worker that starts by Ray's own plugin.
    """
    actor = worker("policy", mode="nsight")
    return ray.get(actor.look.remote(), timeout=150)


def wrong_python(_):
    """
    The same, and Ray starts the wrong Python; it is patched too late.
    """
    actor = worker("policy", mode="nsight")
    ready, _ = ray.wait([actor.look.remote()], timeout=30)
    before = ray_nsight_status()
    after = patch_ray_nsight()
    # Whoever asks for another one gets one that does not start either.
    again = worker("policy-again", mode="nsight")
    late, _ = ray.wait([again.look.remote()], timeout=10)
    return {
        "ready": len(ready) + len(late),
        "before": before.to_dict(),
        "after": after.to_dict(),
    }


def main(case, output_dir):
    """
    Play a case.
    """
    start(20 if case == "wrong_python" else 120)
    try:
        session = ray._private.worker._global_node.get_session_dir_path()
        seen = globals()[case](output_dir)
    finally:
        ray.shutdown()
    print(json.dumps({"session": session, **seen}), flush=True)


main(sys.argv[1], str(Path(sys.argv[2])))
