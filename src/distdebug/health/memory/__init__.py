"""
How much memory has a job, and was a process killed for the lack of it?
"""
