"""
How does one command run on every node of a job?

A node needs *distdebug* and the same Python, and no copy of the user's code.
"""
