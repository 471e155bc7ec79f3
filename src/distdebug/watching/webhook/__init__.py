"""
How does a chat service learn that a job hangs?
"""
