"""
What is this process doing right now?

Looking at running processes from outside, without stopping them.
"""
