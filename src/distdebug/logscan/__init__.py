"""
What went wrong, as gigabytes of logs tell?
"""
