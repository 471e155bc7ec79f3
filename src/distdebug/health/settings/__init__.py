"""
Do the environment variables of the workers of a job fit each other?
"""
