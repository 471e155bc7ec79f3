"""
Which log belongs to that Ray actor, who died first, and why?
"""
