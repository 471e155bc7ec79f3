"""
A Ray cluster of three nodes on this machine, and a job that uses all of it.

Prints one line of JSON when it is ready, and ends when its standard input
does.  ``RAY_TMPDIR`` says where its files go.
"""

import json
import os
import sys

from pathlib import Path

import ray

from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20}


@ray.remote(num_cpus=1)
class Trainer:
    """
    Has the only CPU of a node.
    """

    def path(self):
        """
        Where the workers of the job are.
        """
        return str(Path.cwd())


def start():
    """
    Start the nodes.
    """
    # A port of 0 is any that is free.
    head = {**SMALL, "include_dashboard": False, "gcs_server_port": 0}
    cluster = Cluster(
        initialize_head=True, head_node_args=head, shutdown_at_exit=True
    )
    for _ in range(2):
        cluster.add_node(wait=False, **SMALL)
    cluster.wait_for_nodes()
    return cluster


def train(cluster, working_dir):
    """
    Start a job that has every CPU.
    """
    ray.init(
        cluster.address,
        log_to_driver=False,
        namespace="training",
        runtime_env={
            "working_dir": working_dir,
            "env_vars": {"OF_THE_JOB": "42"},
        },
    )
    trainers = []
    for node in ray.nodes():
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        trainers.append(Trainer.options(scheduling_strategy=place).remote())
    ray.get([trainer.path.remote() for trainer in trainers])
    return trainers


def main():
    """
    Have a cluster until nobody wants it any more.
    """
    answers = os.fdopen(os.dup(1), "w")
    # Ray prints what it likes, whenever it likes.
    os.dup2(2, 1)
    cluster = start()
    trainers = train(cluster, sys.argv[1])
    nodes = {
        node.node_id: node.all_processes["raylet"][0].process.pid
        for node in cluster.list_all_nodes()
    }
    told = {
        "address": cluster.address,
        "job": ray.get_runtime_context().get_job_id(),
        "raylets": nodes,
    }
    answers.write(json.dumps(told) + "\n")
    answers.flush()

    sys.stdin.read()
    del trainers
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
