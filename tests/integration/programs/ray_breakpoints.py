"""
A Ray cluster on this machine, whose tasks and actors stop at breakpoints.

Each line of the standard input starts something, or waits until it has ended;
each is answered by a line of JSON.  It ends when its standard input does.
``RAY_TMPDIR`` says where its files go.
"""

import json
import os
import sys

import ray

from ray.cluster_utils import Cluster


@ray.remote(num_cpus=0)
class Trainer:
    """
    Has a state to look at.
    """

    def __init__(self, rank):
        self.rank = rank

    def step(self, loss):
        """
        Stop in the middle of a step.
        """
        scaled = loss * 2
        breakpoint()  # noqa: T100 -- what this is for
        return scaled + self.rank

    def fail(self):
        """
        End in an error.
        """
        message = "not finite"
        raise ValueError(message)

    def rest(self):
        """
        Do nothing.
        """


@ray.remote(num_cpus=0)
def evaluate(loss):
    """
    Stop in a task.
    """
    breakpoint()  # noqa: T100 -- what this is for
    return -loss


def actor(name, **variables):
    """
    An actor with this name, and these variables.
    """
    options = {"name": name, "runtime_env": {"env_vars": variables}}
    return Trainer.options(**options).remote(7)


def main(answers):
    """
    Start the cluster, and do what is asked for.
    """

    def say(**answer):
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()

    head = {"num_cpus": 1, "object_store_memory": 80 << 20}
    head |= {"include_dashboard": False, "gcs_server_port": 0}
    cluster = Cluster(
        initialize_head=True, head_node_args=head, shutdown_at_exit=True
    )
    ray.init(cluster.address, log_to_driver=False, namespace="training")
    say(address=cluster.address)
    running, kept = {}, []
    for line in sys.stdin:
        what, _, arguments = line.strip().partition(" ")
        answer = None
        if what == "evaluate":
            running["evaluate"] = evaluate.remote(5)
        elif what == "result":
            answer = ray.get(running[arguments], timeout=60)
        else:
            kept.append(actor(what, **json.loads(arguments or "{}")))
            method = "step" if what in {"first", "old_debugger"} else "rest"
            method = "fail" if what == "failing" else method
            loss = [3] if method == "step" else []
            running[what] = getattr(kept[-1], method).remote(*loss)
        say(answer=answer)
    cluster.shutdown()


# Ray prints, too.
with os.fdopen(os.dup(1), "w") as answers:
    os.dup2(2, 1)
    main(answers)
