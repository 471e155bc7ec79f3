"""
An actor with a name that prints as long as its driver's input goes on.

Prints one line of JSON when the actor is there; then the actor prints as many
lines as each line of the input says, and leaves at its end.
"""

import json
import os
import sys

from contextlib import suppress

import ray


@ray.remote(num_cpus=0)
class Chatty:
    """
    Prints numbers.
    """

    def __init__(self):
        self.printed = 0

    def about(self):
        """
        Who this is.
        """
        return {"pid": os.getpid(), "node": os.environ.get("RAY_NODE_ID")}

    def say(self, lines):
        """
        Print numbers.
        """
        for _ in range(lines):
            print(f"number {self.printed} {'x' * 100}", flush=True)
            self.printed += 1

    def leave(self):
        """
        End without a word.
        """
        os._exit(3)


def main():
    """
    Drive the actor.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ray.init("auto", namespace="job", log_to_driver=False)
    chatty = Chatty.options(name="the_chatty").remote()
    answers.write(json.dumps(ray.get(chatty.about.remote())) + "\n")
    answers.flush()
    for line in sys.stdin:
        ray.get(chatty.say.remote(int(line)))
        answers.write("done\n")
        answers.flush()
    with suppress(ray.exceptions.RayError):
        ray.get(chatty.leave.remote())


if __name__ == "__main__":
    main()
