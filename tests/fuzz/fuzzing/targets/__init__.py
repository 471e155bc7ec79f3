"""
The targets, a module for each room; importing one adds its targets.
"""
