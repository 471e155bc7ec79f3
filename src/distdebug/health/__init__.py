"""
Is a node, with its GPUs and its network, able to work?
"""
