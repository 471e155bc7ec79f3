"""
What do the dumps of a job say is wrong with it?

From records to calls (`operations`, `streams`), from calls to progress
(`membership`, `progress`, `p2p`), from progress to waits (`stuck`, `freshness`)
and to their beginning (`roots`), and beside that who called something else
(`mismatch`, `shift`, `pairs`) and who is late (`stragglers`).
"""
