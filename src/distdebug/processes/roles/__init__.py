"""
Who started a process, and what does it do in its job?
"""
