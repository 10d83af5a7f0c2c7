"""What this machine has to compute on."""

from __future__ import annotations

import torch


def gpu_count() -> int:
    """GPUs that torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
