"""
What changes as long as a job makes progress?
"""
