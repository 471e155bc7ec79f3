"""
Who is behind, in which collective, since when?

Everything about PyTorch's Flight Recorder: switching it on, dumping it,
reading dumps, and analyzing them.
"""
