"""
Which report belongs to which worker, and what does it tell?
"""
