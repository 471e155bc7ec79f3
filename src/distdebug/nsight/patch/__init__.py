"""
Does Ray's own nsight plugin start the right Python, and if not, how is it
mended?
"""
