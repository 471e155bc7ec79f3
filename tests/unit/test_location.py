"""
The line of a stack that a person can change.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Location
from distdebug.flight_recorder import Frame
from distdebug.usercode import Layer, code_layer, user_location


MINE = Frame("step", "/home/me/train.py", 41)


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3.12/threading.py",
        "/opt/venv/lib/python3.11/site-packages/numpy/core.py",
        "/usr/lib/python3/dist-packages/six.py",
        "torch/distributed/distributed_c10d.py",
        "/src/torch/nn/modules/module.py",
        "/src/torch/_dynamo/eval_frame.py",
        "/src/distdebug/flight_recorder/dump.py",
        "C:\\venv\\Lib\\site-packages\\torch\\x.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        "threading.py",
        "multiprocessing\\spawn.py",
        "torch/_tensor.py",
        "requests/adapters.py",
        "/opt/venv/bin/torchrun",
        "/usr/lib/libtorch_cpu.so",
    ],
)
def test_framework(file):
    """
    Lines of frameworks are passed over.
    """
    where = user_location([Frame("inner", file, 1), MINE])

    assert Location(function="step", file=MINE.filename, line=41) == where


@pytest.mark.parametrize(
    "file",
    [
        "train.py",
        "/home/lib/train.py",
        "/me/torchrun/nn/train.py",
        "<dynamic-code>",
        "<ipython-input-3-0f1e2d>",
        "/home/me/bin/train.py",
        "src/me/train.py",
        "requests.py",
        "vllm.py",
        "/home/me/vllm/train.py",
        "/home/me/data/datasets/loader.py",
    ],
)
def test_users(file):
    """
    The innermost line of a user's code is the one.
    """
    where = user_location([Frame("f", file, 3), MINE])

    assert (file, 3) == (where.file, where.line)


@pytest.mark.parametrize(
    "file",
    [
        "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/engine.py",
        "transformers/trainer.py",
        "/workspace/Megatron-LM/megatron/core/pipeline_parallel/schedules.py",
        "/workspace/Megatron-LM/megatron/inference/api.py",
        "/src/DeepSpeed/deepspeed/utils/timer.py",
        "/src/vllm-0.6.3/vllm/config.py",
        "/me/ray/python/ray/actor.py",
        "/me/transformers/src/transformers/trainer.py",
        "C:\\src\\verl\\verl\\trainer\\main_ppo.py",
    ],
)
def test_checkout(file):
    """
    A framework is one wherever it lies, and comes before libraries.
    """
    library = Frame("wait", "/usr/lib/python3.12/threading.py", 5)

    assert Layer.FRAMEWORK is code_layer(file)
    assert MINE.filename == user_location([Frame("f", file, 3), MINE]).file
    assert file == user_location([library, Frame("f", file, 3)]).file


def test_no_user():
    """
    Without a user's line, the innermost one has to do, if there is any.
    """
    inner = Frame("wait", "/usr/lib/python3.12/threading.py", 5)
    outer = Frame("run", "/usr/lib/python3.12/runpy.py", 9)

    assert "wait" == user_location([inner, outer]).function
    assert user_location([]) is None
