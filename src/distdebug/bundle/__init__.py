"""
What does a snapshot look like on disk?
"""
