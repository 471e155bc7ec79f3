"""
Find, decode, and assemble Flight Recorder dump files.

`files` finds the files, `sandbox` decodes them in child processes (`decode`,
`extract`; `clog` and `inspector` for other recorders), and `assemble` parses
their answers into dumps with shared tables (`columns`).
"""
