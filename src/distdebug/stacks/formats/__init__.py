"""
How does each tool write a stack?

One module per tool; every one returns the types of
:mod:`distdebug.stacks.model`.
"""
