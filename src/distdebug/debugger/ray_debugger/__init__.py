"""
What does the debugger need that Ray brings along, and who waits in it?
"""
