"""
What does the file system of the kernel tell about a process?
"""
