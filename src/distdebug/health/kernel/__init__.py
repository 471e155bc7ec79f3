"""
What did the kernel of a node say about it?
"""
