"""
Jobs as practitioners write them, each with a fault, and what is said of them.
"""
