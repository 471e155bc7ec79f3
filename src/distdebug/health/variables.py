"""
Which environment variables of a worker may be kept and shown?
"""

from __future__ import annotations

import re

from collections.abc import Mapping

from .._text import clean


__all__ = ["public_variables"]

# Whatever else is in an environment is nobody's business.
_PREFIXES = (
    *("NCCL_", "RCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "UCX_", "FI_"),
    *("TP_SOCKET_IFNAME", "TORCHSPEC_LOG_LEVEL", "CUDA_", "HIP_", "ROCR_"),
    *("PYTORCH_", "OMP_", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
    *("RAY_", "VLLM_", "SGLANG_", "MEGATRON_", "HF_HOME", "HF_HUB_"),
    *("HF_DATASETS_", "HF_XET_", "MASTER_ADDR", "MASTER_PORT"),
)
_NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "NODE_RANK"),
        *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        *("SLURM_NODEID", "SLURM_NNODES", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        *("PMI_RANK", "PMI_SIZE", "PMIX_RANK"),
    }
)
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE|BEARER",
    re.IGNORECASE,
)
# A few names hold such a word, and no secret.
_NO_SECRET = frozenset(
    {"RAY_AUTH_MODE", "TOKENIZERS_PARALLELISM", "VLLM_TOKENIZER_MODE"}
)
_ACCOUNT = re.compile(r"://[^/\s]{0,500}@")
# Some are recognized by themselves: of Hugging Face, OpenAI, GitHub, AWS, and
# web tokens.
_SECRET_VALUE = re.compile(
    r"\bhf_[A-Za-z0-9]{20}|\bsk-[A-Za-z0-9_-]{16}|\bgh[pousr]_[A-Za-z0-9]{20}"
    r"|\bAKIA[A-Z0-9]{12}|\beyJ[A-Za-z0-9_-]{16}|-----BEGIN"
    r"|(?:token|secret|passw(?:or)?d|api[-_]?key)[\"']?\s{0,3}[=:]",
    re.IGNORECASE,
)
_LONGEST = 500


def public_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """
    Which variables of a worker may be kept?

    Args:
        environ: All of them.

    Returns:
        Those of the network, of torch, and of the frameworks by name, without
        any that may be a secret, by its name or by its value.
    """
    return {
        clean(name): clean(value, limit=_LONGEST)
        for name, value in sorted(environ.items())
        if _is_public(name, value)
    }


def _is_public(name: str, value: str) -> bool:
    if name not in _NAMES and not name.startswith(_PREFIXES):
        return False
    if name not in _NO_SECRET and _SECRET.search(name):
        return False

    return not (_ACCOUNT.search(value) or _SECRET_VALUE.search(value))
