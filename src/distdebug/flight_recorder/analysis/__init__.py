"""
Analyze Flight Recorder dumps: stuck calls, mismatches, stragglers.

The stages are:

- `membership`: process groups and call signatures,
- `job`: these, the progress of each rank in each group, and the
  point-to-point channels, computed once and on demand,
- `endings`: errors and signals that ended ranks,
- `mismatch`: calls in which the ranks of a group differ,
- `stuck`: calls that do not complete, and the waits between them,
- `root_causes`: root causes of these waits,
- `stragglers`: ranks that are always late,
- `delays`: these, and slow links, also by what NCCL Inspector recorded,
- `analyze` and `report`: the findings and the report of all stages.
"""
