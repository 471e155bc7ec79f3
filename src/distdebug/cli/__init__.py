"""
The command line: each module is one command.

A command parses its arguments, calls one function, and prints the result.
What it needs is imported when it runs, so that ``--help`` is quick.
"""
