"""
What do the GPUs of a node tell about themselves?
"""
