"""
How are just these workers of a job profiled with Nsight Systems?
"""
