"""
Jobs on GPUs: what only a GPU, its driver, and NCCL can show.
"""
