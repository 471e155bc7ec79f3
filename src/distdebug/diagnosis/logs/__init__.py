"""
What do the logs of a job add to its diagnosis, or tell on their own?
"""
