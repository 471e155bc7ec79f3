"""
How is recording switched on, and what does a rank leave behind?

Everything here runs inside training jobs and needs nothing but the standard
library: the plan of what to set (`variables`, `plan`, `settings`), what is
known about the process (`describe`, `trace`), and what writes it in time
(`extras`, `listener`, `last_words`, `crash_signals`).
"""
