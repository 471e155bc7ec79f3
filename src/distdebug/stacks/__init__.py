"""
What do the stacks of running processes say?

Reading what other tools wrote, and saying what the main thread is doing.
"""
