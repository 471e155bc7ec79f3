"""
Is the job still making progress; and if not, what is done?
"""
