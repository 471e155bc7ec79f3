"""
Who asks the ranks, and how are their answers shown?
"""
