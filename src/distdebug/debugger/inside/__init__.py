"""
What runs in the job, so that it can be stopped and asked?

Everything here is imported inside training jobs: it needs nothing but the
standard library, opens no TCP port, and lets no thread wait without a limit.
"""
