"""
Parse stack dumps of running processes and explain what each one waits for.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .explain import explain_ranks as explain_ranks
    from .explain import explain_stacks as explain_stacks
    from .export import stacks_to_json as stacks_to_json
    from .export import stacks_to_text as stacks_to_text
    from .export import to_collapsed as to_collapsed
    from .export import to_speedscope as to_speedscope
    from .formats.gdb import parse_kernels as parse_kernels
    from .jobs import is_same_job as is_same_job
    from .jobs import join_threads as join_threads
    from .jobs import members_of_job as members_of_job
    from .jobs import split_jobs as split_jobs
    from .merge import StackTree as StackTree
    from .merge import group_by_key as group_by_key
    from .merge import merge_stacks as merge_stacks
    from .merge import native_function as native_function
    from .merge import to_branches as to_branches
    from .model import GpuKernel as GpuKernel
    from .model import ProcessStacks as ProcessStacks
    from .model import StackFrame as StackFrame
    from .model import SystemCall as SystemCall
    from .model import ThreadActivity as ThreadActivity
    from .model import ThreadStack as ThreadStack
    from .model import is_native as is_native
    from .model import short_kernel_name as short_kernel_name
    from .parse import StackFiles as StackFiles
    from .parse import is_capture_file as is_capture_file
    from .parse import is_stack_file as is_stack_file
    from .parse import no_stacks_error as no_stacks_error
    from .parse import parse_stacks as parse_stacks
    from .parse import read_stack_files as read_stack_files
    from .parse import read_stacks as read_stacks
    from .process_view import LOOK_AGAIN as LOOK_AGAIN
    from .process_view import NO_THREAD as NO_THREAD
    from .process_view import ProcessView as ProcessView
    from .process_view import blocked_text as blocked_text
    from .process_view import conjugate as conjugate
    from .rules import is_background as is_background
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)
