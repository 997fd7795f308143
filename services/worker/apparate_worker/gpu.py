"""What a GPU says of its memory."""

from __future__ import annotations

import torch


def memory(device: torch.device) -> dict[str, float]:
    """Bytes by state: total and free of the device, reserved and allocated by this process; nothing without a GPU."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return {"total": float(total), "free": float(free), "reserved": float(reserved), "allocated": float(allocated)}
