"""
What does a worker do that is profiled?

It runs inside training jobs: nothing here raises, and without CUDA it does
nothing.
"""
