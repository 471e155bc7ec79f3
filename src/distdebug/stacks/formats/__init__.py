"""
Parse the stack formats of each tool.

There is one module per tool; each returns the types of
:mod:`distdebug.stacks.model`.
"""
