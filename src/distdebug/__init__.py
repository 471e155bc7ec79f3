"""
Which rank is stuck, in which collective, at which line, and why?

Importing this package costs nothing and changes nothing: it loads neither
torch nor any other package.  Every public name loads its module when it is
first used::

    import distdebug

    distdebug.enable_flight_recorder(dump_dir="dumps")  # in the training script
    print(distdebug.diagnose("dumps"))  # anywhere, when it hangs

Here are the functions that answer a question, and the types of what they
return.  The rest is in the modules :mod:`~distdebug.errors`,
:mod:`~distdebug.debugger`, :mod:`~distdebug.integrations`,
:mod:`~distdebug.nsight`, :mod:`~distdebug.ray`, and :mod:`~distdebug.testing`.
"""

from __future__ import annotations


# No module may bear a public name: importing it would bind the module, and
# not what the name stands for, as an attribute of this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import debugger as debugger
    from . import errors as errors
    from . import integrations as integrations
    from . import nsight as nsight
    from . import ray as ray
    from . import testing as testing
    from .capture import Capture as Capture
    from .capture import capture_node as capture_node
    from .capture import capture_process as capture_process
    from .causes import Cause as Cause
    from .debugger import arm as arm
    from .debugger import connect as connect
    from .debugger import post_mortem as post_mortem
    from .debugger import set_trace as set_trace
    from .diagnosis import diagnose as diagnose
    from .errors import DistdebugError as DistdebugError
    from .findings import Diagnosis as Diagnosis
    from .findings import Evidence as Evidence
    from .findings import Finding as Finding
    from .flight_recorder import Dumps as Dumps
    from .flight_recorder import analyze_dumps as analyze_dumps
    from .flight_recorder import dump_flight_recorder as dump_flight_recorder
    from .flight_recorder import (
        enable_flight_recorder as enable_flight_recorder,
    )
    from .flight_recorder import read_dumps as read_dumps
    from .flight_recorder import request_dumps as request_dumps
    from .flight_recorder import write_replay as write_replay
    from .flight_recorder import write_timeline as write_timeline
    from .health import check_environment as check_environment
    from .health import check_node as check_node
    from .logs import collective_findings as collective_findings
    from .logs import detect_phase as detect_phase
    from .logs import read_collective_logs as read_collective_logs
    from .logs import scan_logs as scan_logs
    from .nodes import run_on_nodes as run_on_nodes
    from .processes import find_workers as find_workers
    from .ranks import Mesh as Mesh
    from .ranks import RankSelection as RankSelection
    from .ranks import fold_ranks as fold_ranks
    from .ranks import parse_ranks as parse_ranks
    from .report import report_html as report_html
    from .report import write_report as write_report
    from .snapshots import Snapshot as Snapshot
    from .snapshots import preflight as preflight
    from .snapshots import snapshot as snapshot
    from .stacks import ProcessStacks as ProcessStacks
    from .stacks import explain_stacks as explain_stacks
    from .stacks import merge_stacks as merge_stacks
    from .stacks import read_stacks as read_stacks
    from .watching import HangDebugConfig as HangDebugConfig
    from .watching import Watch as Watch
    from .watching import watch as watch

    __version__: str
else:
    from . import _lazy

    def _version():
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(__name__)
        except PackageNotFoundError:  # run from a checkout
            return "unknown"

    # Where the names are that this package had, too, before version 0.1.
    _FORMER = (
        *("errors", "debugger", "nsight", "ray", "flight_recorder", "nodes"),
        *("processes", "watching"),
    )
    __getattr__, __dir__ = _lazy.lazy_names(
        __name__, _FORMER, __version__=_version
    )
