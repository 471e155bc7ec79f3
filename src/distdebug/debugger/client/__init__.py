"""
Client of the debugger: ask ranks, and show their answers.
"""
