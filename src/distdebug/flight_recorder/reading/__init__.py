"""
Find, decode, and assemble Flight Recorder dump files.

`files` finds the files, `sandbox` decodes them in child processes (`decode`,
`extract`), and `assemble` chooses one dump per rank and joins them into shared
tables (`columns`).
"""
