"""
Record inside training jobs, and write dumps and sidecars when a rank ends.

Everything here needs nothing but the standard library: which variables to set
(`plan`), how to write a dump (`dump`), and which signals save stacks
(`signals`).
"""
