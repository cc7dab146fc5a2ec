"""Souk from Python: clients of its search service.

`souk.schemas` has the types of requests and answers. The clients need httpx: `pip install souk[client]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import Busy, SoukError, Unreachable

if TYPE_CHECKING:
    from .client import AsyncClient, Client

__all__ = ["AsyncClient", "Busy", "Client", "SoukError", "Unreachable"]


def __getattr__(name: str) -> Any:
    """Loads the clients when they are first used."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module `souk` has no attribute `{name}`")
    from . import client

    return getattr(client, name)
