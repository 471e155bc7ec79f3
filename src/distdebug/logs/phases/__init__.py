"""
Detect the start-up phase of a job, and whether it takes too long.
"""
