"""
Is a Ray cluster alive on this node?
"""
