"""
Analyze Flight Recorder dumps: stuck calls, mismatches, stragglers.

The stages are:

- `membership`: process groups and call signatures,
- `progress`: the sequence numbers that each rank reached in each group,
- `job`: these and the point-to-point channels, computed once,
- `mismatch`: calls in which the ranks of a group differ,
- `stuck`: calls that do not complete, and the waits between them,
- `roots`: root causes of these waits,
- `stragglers`: ranks that are always late,
- `analyze` and `report`: the findings and the report of all stages.
"""
