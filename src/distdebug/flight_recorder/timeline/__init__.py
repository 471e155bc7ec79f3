"""
How do the calls of all ranks look side by side in time?

From clocks of hosts to one clock (`clocks`), from records to who arrived when
(`arrivals`), to slices with an honest end (`ends`) on tracks where they do not
overlap (`tracks`), and from there to the formats that Perfetto opens
(`chrome`, `native`).
"""
