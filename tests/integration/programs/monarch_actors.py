"""
Actors of Monarch that stop: in two slices, in a view, in threads, and where they fail.
"""

import asyncio
import functools
import sys
import threading

from monarch.actor import Actor, endpoint, this_host

import distdebug


class Trainer(Actor):
    """
    An actor whose endpoints run in the event loop.
    """

    @endpoint
    async def step(self, value):
        """
        Compute something, and stop; there is one line after it.
        """
        twice = value * 2
        breakpoint()  # noqa: T100 it is what is tested
        return twice + 1

    @endpoint
    async def wait(self, gate):
        """
        Hold the event loop, as a collective does.
        """
        batch = 117
        with open(gate):  # noqa: ASYNC230, PTH123 until somebody writes
            return batch

    @endpoint
    async def fail(self):
        """
        Fail, with something to look at.
        """
        secret = 42
        msg = f"{secret} exploded"
        raise ValueError(msg)

    @endpoint
    async def load(self):
        """
        Stop in a thread of its own.
        """
        found = []

        def read():
            """
            Load an item, in a thread.
            """
            item = 5
            breakpoint()  # noqa: T100 it is what is tested
            found.append(item)

        thread = threading.Thread(target=read, name="loader")
        thread.start()
        thread.join()
        return found


class Critic(Actor):
    """
    An actor whose endpoints run in a thread.
    """

    @endpoint
    def judge(self):
        """
        Stop as well.
        """
        score = 9
        breakpoint()  # noqa: T100 it is what is tested
        return score


async def main(scenario):
    """
    Play one scenario.
    """
    setup = functools.partial(
        distdebug.debugger.monarch_setup, post_mortem=scenario == "fail"
    )
    procs = this_host().spawn_procs(
        per_host={"dp": 2, "tp": 2}, bootstrap=setup
    )
    trainer = procs.spawn("trainer", Trainer)
    critic = procs.spawn("critic", Critic)
    # What begins later in the same process would be who is asked there.
    await trainer.initialized
    await critic.initialized
    calls = {
        "slices": lambda: [
            trainer.slice(dp=0).step.call(1),
            trainer.slice(dp=1).step.call(10),
        ],
        "renamed": lambda: [trainer.rename(dp="data").step.call(1)],
        "flat": lambda: [trainer.flatten("all").step.call(1)],
        "both": lambda: [trainer.step.call(1), critic.judge.call()],
        "blocked": lambda: [trainer.slice(dp=0).wait.call(sys.argv[2])],
        "load": lambda: [trainer.slice(dp=0, tp=0).load.call()],
        "fail": lambda: [trainer.slice(dp=0, tp=1).fail.call()],
    }
    results = await asyncio.gather(*calls[scenario](), return_exceptions=True)
    for result in results:
        is_error = isinstance(result, Exception)
        told = type(result).__name__ if is_error else [*result.values()]
        print("RESULT", told, flush=True)
    await procs.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
