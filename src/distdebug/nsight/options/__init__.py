"""
Who is to be profiled, in which steps, and with what options?
"""
