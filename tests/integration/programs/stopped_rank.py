"""
A rank that stops where a debugger may ask it, until it is told to go on.
"""

from distdebug.debugger import arm, set_trace


def train(step):
    """
    Stop in the midst of it.
    """
    loss = 0.25 * step
    set_trace()
    return loss


if __name__ == "__main__":
    arm()
    train(7)
