"""Encoders in this process, with the methods of `sentence_transformers.SentenceTransformer`. Needs numpy."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

# texts between two steps of the progress bar
CHUNK = 1024
# names that sentence-transformers, TEI and Souk give the two prompts
PROMPTS = {"query": "query", "document": "item", "passage": "item", "item": "item"}
# in the order in which they need each other
LIBRARIES = ["libc10.so", "libtorch_cpu.so"]


class Native(Protocol):
    """Class of the compiled module."""

    dimensions: int
    max_tokens: int | None
    fingerprint: str

    def encode(self, texts: list[str], kind: str | None) -> bytes: ...


class Encoder:
    """A model that turns texts into vectors. Threads may share it.

    `model` is a model folder, a hub name such as `sentence-transformers/all-MiniLM-L6-v2`, or an address such as `s3://BUCKET/MODEL`.
    `settings` are other settings, as `souk config explain` lists them: `{"encoder.pooling": "cls"}`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        precision: str = "f32",
        truncate_dim: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        changes = {"model.device": device, "model.precision": precision, **(settings or {})}
        if truncate_dim is not None:
            changes["encoder.dimensions"] = truncate_dim
        pairs = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in changes.items()]
        self._native = cast(Native, native().NativeEncoder(str(model), pairs))

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Vectors `[number, dimensions]` in float32, or one vector for one text.

        `prompt_name` is "query", "document" or none. `batch_size` has no effect: batches are formed by tokens. With
        `convert_to_numpy=False` the result is a list of arrays.
        """
        if prompt_name is not None and prompt_name not in PROMPTS:
            raise ValueError(f"no prompt `{prompt_name}`: use query or document")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("encode takes a text or a list of texts")
        kind = PROMPTS[prompt_name] if prompt_name else None
        parts = [np.empty((0, self.dimensions), np.float32)]
        for start in progress(range(0, len(texts), CHUNK), show_progress_bar):
            vectors = np.frombuffer(self._native.encode(texts[start : start + CHUNK], kind), np.dtype("<f4"))
            parts.append(vectors.reshape(-1, self.dimensions))
        found = np.concatenate(parts)[:, :truncate_dim]
        if normalize_embeddings:
            found = unit(found)
        if convert_to_tensor:
            import torch

            tensor = torch.from_numpy(np.ascontiguousarray(found))
            return tensor[0] if isinstance(sentences, str) else tensor
        if isinstance(sentences, str):
            return found[0]
        return found if convert_to_numpy else list(found)

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """As `encode`, with the model's prompt for queries."""
        return self.encode(sentences, **{"prompt_name": "query"} | options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """As `encode`, with the model's prompt for items."""
        return self.encode(sentences, **{"prompt_name": "document"} | options)

    def similarity(self, left: Any, right: Any) -> np.ndarray:
        """Cosine of each vector of `left` with each of `right`."""
        left, right = np.atleast_2d(left), np.atleast_2d(right)
        return unit(left) @ unit(right).T

    def get_sentence_embedding_dimension(self) -> int:
        return self.dimensions

    @property
    def dimensions(self) -> int:
        return self._native.dimensions

    @property
    def max_seq_length(self) -> int | None:
        """Tokens of a text; longer texts are truncated."""
        return self._native.max_tokens

    @property
    def fingerprint(self) -> str:
        """Names weights and settings; a service that serves this model shows it in `/info` as `model_sha`."""
        return self._native.fingerprint


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def progress(starts: range, shown: bool) -> Any:
    if not shown:
        return starts
    from tqdm.auto import tqdm

    return tqdm(starts, desc="Batches")


def native() -> Any:
    """The compiled module, after the libraries of the package torch, which it links to by name."""
    if "souk._native" not in sys.modules:
        spec = importlib.util.find_spec("torch")
        folders = list(spec.submodule_search_locations or []) if spec else []
        if not folders:
            raise ImportError("souk.Encoder needs libtorch from the package torch: pip install torch")
        for name in LIBRARIES:
            ctypes.CDLL(str(Path(folders[0]) / "lib" / name), ctypes.RTLD_GLOBAL)
    from . import _native

    return _native
