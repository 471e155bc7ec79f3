"""
A job whose actors die in every way, as the driver of a Ray cluster.

The first argument is the file to which it writes what it knows of everybody:
who, where, and which process.  The second says which part of it to play.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import time

from contextlib import suppress
from pathlib import Path

import ray


HEAD, OTHER, SMALL = ({name: 0.001} for name in ("head", "other", "small"))
PATIENCE_S = 60
FULL = 4 << 30


def about():
    """
    Who this is.
    """
    context = ray.get_runtime_context()
    return {
        "pid": os.getpid(),
        "actor_id": context.get_actor_id(),
        "worker_id": context.get_worker_id(),
        "node_id": context.get_node_id(),
        "job_id": context.get_job_id(),
    }


class Mortal:
    """
    Can die in many ways.
    """

    def about(self):
        """
        Who this is.
        """
        print(f"{type(self).__name__} says hello")
        logging.getLogger("job").warning("%s warns", type(self).__name__)
        return about()

    def segfault(self):
        """
        Read where nothing is.
        """
        print("about to segfault", flush=True)
        ctypes.string_at(0)

    def abort(self):
        """
        End as failed assertions of C++ do.
        """
        print("about to abort", flush=True)
        os.abort()

    def kill(self):
        """
        End as what the kernel kills.
        """
        print("about to be killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self):
        """
        End without a word.
        """
        print("about to leave", flush=True)
        os._exit(3)

    def fail(self):
        """
        Raise, which does no harm to an actor.
        """
        message = "only this call fails"
        raise ValueError(message)

    def bow(self):
        """
        End as is meant to.
        """
        ray.actor.exit_actor()

    def adopt(self):
        """
        Own another actor.
        """
        self.child = ray.remote(Orphan).options(resources=OTHER).remote()
        return ray.get(self.child.about.remote())

    def grow(self):
        """
        Take memory until somebody objects.
        """
        block, kept = 64 << 20, []
        while len(kept) * block < FULL:
            kept.append(b"x" * block)
            time.sleep(0.1)
        time.sleep(PATIENCE_S)


class TrainerActor(Mortal):
    """
    Lives until the cluster ends, and has a representation of its own.
    """

    def __init__(self, rank):
        self.rank = rank

    def __repr__(self):
        return f"TrainerActor(rank={self.rank})"

    def shout(self, lines):
        """
        Print so much that files are rotated.
        """
        for number in range(lines):
            print(f"line {number} {'x' * 100}")
            print(f"error line {number} {'x' * 100}", file=sys.stderr)


class SglEngine(Mortal):
    """
    Ends by a segmentation fault.
    """


class Aborter(Mortal):
    """
    Aborts.
    """


class Killed(Mortal):
    """
    Is killed.
    """


class Leaver(Mortal):
    """
    Calls os._exit.
    """


class Stillborn(Mortal):
    """
    Raises before it lives.
    """

    def __init__(self):
        message = "no such checkpoint"
        raise FileNotFoundError(message)


class Parent(Mortal):
    """
    Owns another actor, and dies.
    """


class Orphan(Mortal):
    """
    Dies when its owner does.
    """


class Sacked(Mortal):
    """
    Ends because the driver says so.
    """


class Retired(Mortal):
    """
    Ends because it says so.
    """


class Hog(Mortal):
    """
    Takes all memory.
    """


class Bystander(Mortal):
    """
    Is beside the one that takes all memory.
    """


class Reporter(Mortal):
    """
    Logs records in JSON.
    """


@ray.remote
def preprocess(number):
    """
    A task.
    """
    print(f"task {number}")
    return about()


def start(cls, resources, *arguments, name=None):
    """
    Start an actor.
    """
    options = {"num_cpus": 0, "resources": resources, "name": name}
    return ray.remote(cls).options(**options).remote(*arguments)


def wait_for_end(call):
    """
    Wait until a call is over, however it ends.
    """
    with suppress(ray.exceptions.RayError):
        ray.get(call, timeout=PATIENCE_S)


def wait_for_process(pid):
    """
    Wait until a process of this machine is gone.
    """
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def play_deaths(known):
    """
    Start everybody, and let them die one after the other.
    """
    trainers = [
        start(TrainerActor, place, rank, name=f"trainer_{rank}")
        for rank, place in enumerate((HEAD, OTHER))
    ]
    for rank, trainer in enumerate(trainers):
        known[f"trainer_{rank}"] = ray.get(trainer.about.remote())
    known["task"] = ray.get(preprocess.options(resources=OTHER).remote(7))
    ray.get([trainer.shout.remote(3000) for trainer in trainers])
    deaths = (
        *((SglEngine, OTHER, "segfault"), (Aborter, HEAD, "abort")),
        *((Killed, OTHER, "kill"), (Leaver, HEAD, "leave")),
        (Retired, HEAD, "bow"),
    )
    for cls, place, way in deaths:
        actor = start(cls, place)
        known[cls.__name__] = ray.get(actor.about.remote())
        wait_for_end(getattr(actor, way).remote())
    play_the_rest(known)
    wait_for_end(trainers[0].fail.remote())
    known["trainers"] = [ray.get(t.about.remote()) for t in trainers]


def play_the_rest(known):
    """
    Deaths that others are the reason for.
    """
    wait_for_end(start(Stillborn, OTHER).about.remote())
    parent = start(Parent, HEAD)
    known["Parent"] = ray.get(parent.about.remote())
    known["Orphan"] = ray.get(parent.adopt.remote())
    wait_for_end(parent.kill.remote())
    wait_for_process(known["Orphan"]["pid"])
    sacked = start(Sacked, OTHER)
    known["Sacked"] = ray.get(sacked.about.remote())
    ray.kill(sacked)
    wait_for_end(sacked.about.remote())


def play_memory(known):
    """
    Let one actor take so much memory that Ray kills it.
    """
    bystander, hog = start(Bystander, SMALL), start(Hog, SMALL)
    known["Bystander"] = ray.get(bystander.about.remote())
    known["Hog"] = ray.get(hog.about.remote())
    wait_for_end(hog.grow.remote())


def play_json(known):
    """
    Have an actor with a name log in JSON.
    """
    reporter = start(Reporter, HEAD, name="the_reporter")
    known["Reporter"] = ray.get(reporter.about.remote())


def main():
    """
    Play one part.
    """
    file, part = Path(sys.argv[1]), sys.argv[2]
    config = ray.LoggingConfig(encoding="JSON") if part == "json" else None
    ray.init("auto", namespace="job", logging_config=config)
    known = {}
    {"deaths": play_deaths, "memory": play_memory, "json": play_json}[part](
        known
    )
    # What was printed meanwhile is on its way to the driver.
    time.sleep(2)
    file.write_text(json.dumps(known))


if __name__ == "__main__":
    main()
