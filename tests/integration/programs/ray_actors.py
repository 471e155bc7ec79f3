"""
Actors and tasks of Ray that stop, each in its own way.
"""

import asyncio
import sys
import threading

import ray


@ray.remote(num_cpus=0)
class Policy:
    """
    An actor that knows its rank.
    """

    def __init__(self, rank):
        self.rank = rank

    def step(self, value):
        """
        Compute something, and stop.
        """
        found = value * 10 + self.rank
        breakpoint()  # noqa: T100 it is what is tested
        return found

    def load(self):
        """
        Stop in a thread of its own.
        """
        found = []

        def read():
            item = 5
            breakpoint()  # noqa: T100 it is what is tested
            found.append(item)

        thread = threading.Thread(target=read, name="loader")
        thread.start()
        thread.join()
        return found

    def fail(self):
        """
        Fail, with something to look at.
        """
        secret = self.rank + 41
        msg = f"{secret} exploded"
        raise ValueError(msg)


@ray.remote(num_cpus=0)
class Critic:
    """
    An actor with a name, whose methods run in an event loop.
    """

    async def step(self, value):
        """
        Stop after a turn of the loop.
        """
        await asyncio.sleep(0)
        found = -value
        breakpoint()  # noqa: T100 it is what is tested
        return found


@ray.remote(num_cpus=0)
def prepare(count):
    """
    Stop in a task.
    """
    more = count + 1
    breakpoint()  # noqa: T100 it is what is tested
    return more


def calls(scenario):
    """
    What to do in each scenario.
    """
    if scenario == "fail":
        return [Policy.remote(1).fail.remote()]
    if scenario == "load":
        return [Policy.remote(3).load.remote()]
    policies = [Policy.remote(rank) for rank in range(2)]
    critics = [Critic.options(name=f"judge_{i}").remote() for i in range(2)]
    return [
        *(actor.step.remote(7) for actor in policies + critics),
        prepare.remote(4),
    ]


def main(scenario):
    """
    Play one scenario.
    """
    ray.init(num_cpus=1, include_dashboard=False)
    for reference in calls(scenario):
        try:
            told = ray.get(reference)
        except ray.exceptions.RayTaskError as exc:
            told = type(exc).__name__
        print("RESULT", told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
