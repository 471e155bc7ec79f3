"""
Which interfaces has a node, and do they work?
"""
