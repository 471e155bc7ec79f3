"""
May a process be looked into; and if not, why, and what helps?
"""
