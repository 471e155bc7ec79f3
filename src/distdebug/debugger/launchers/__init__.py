"""
How is a process debugged that a launcher runs in its own way?

Ray and Monarch take ``breakpoint()`` for themselves, run many actors in their own
loops, and catch what these raise.
"""
