"""
Write a timeline of all ranks from Flight Recorder dumps, for Perfetto.

`clocks` compares the clocks of hosts and collects arrivals, `slices` lays out
the calls of one rank on tracks, and `write` encodes them as Trace Event Format
or as Perfetto packets.
"""
