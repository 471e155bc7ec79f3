"""
In which phase of its start-up is a job, and does that take too long?
"""
