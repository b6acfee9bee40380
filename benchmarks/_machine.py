"""Where and when something was measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, load, versions and the date."""
    import torch

    from mpt.record.cpu import cpu_info

    info = cpu_info()
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": info.model,
        "cores": os.cpu_count(),
        "cpu_features": list(info.flags),
        "gpu": gpu,
        "load_1m": round(os.getloadavg()[0], 2),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
    }
