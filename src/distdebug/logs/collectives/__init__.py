"""
Reconstruct hung collectives from the lines of watchdogs, Gloo, and NCCL.
"""
