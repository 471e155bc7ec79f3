"""
Which processes of this node are the workers of a job?
"""
