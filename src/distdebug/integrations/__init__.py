"""
Adapters for training frameworks, test runners, and other tools.
"""
