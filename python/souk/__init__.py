"""Souk from Python: clients of its search service, and encoders in this process.

`souk.schemas` has the types of requests and answers. The clients need httpx: `pip install souk[client]`. `Encoder` needs numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import Busy, SoukError, Unreachable

if TYPE_CHECKING:
    from .client import AsyncClient, Client
    from .encoder import Encoder

__all__ = ["AsyncClient", "Busy", "Client", "Encoder", "SoukError", "Unreachable"]

# loaded when first used, because their packages may be missing
LAZY = {"AsyncClient": ".client", "Client": ".client", "Encoder": ".encoder"}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module `souk` has no attribute `{name}`")
    return getattr(importlib.import_module(LAZY[name], __name__), name)
