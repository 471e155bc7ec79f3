"""
How can tools that stop a process be attached to it, and never harm it?
"""
