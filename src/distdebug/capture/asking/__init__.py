"""
What does a process tell about itself, where no tool may look?
"""
