"""
Find, decode, and assemble Flight Recorder dump files.

`files` finds the files, `sandbox` decodes them in child processes (`decode`,
`extract`; `hooks`, `clog`, and `inspector` for other recorders), and `assemble`
parses their answers into dumps with shared tables (`columns`); `communicators`
maps what NCCL Inspector recorded to ranks.
"""
