"""A typical alternative to Souk's search service: sentence-transformers and faiss behind uvicorn.

POST /search {query, k} -> {hits: [{id, score, rank, title}]}, over the items of a data folder. The HNSW graph has the same
parameters as Souk's index. Prints `ready` when it starts to listen.
"""

import argparse
import json
from pathlib import Path

import faiss
import numpy
import torch
import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

LINKS, BUILD_REACH, REACH = 16, 200, 100


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--vectors", type=Path, help="file to cache the items' vectors in")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    model = SentenceTransformer(str(options.model), device="cpu")
    items = [json.loads(line) for line in open(options.data / "corpus.jsonl", encoding="utf-8")]
    index = faiss.IndexHNSWFlat(model.get_embedding_dimension(), LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_REACH, REACH
    index.add(vectors(model, items, options.vectors))

    def answer(query, k):
        vector = model.encode([query], normalize_embeddings=True, show_progress_bar=False)
        scores, rows = index.search(vector, k)
        found = enumerate(zip(rows[0].tolist(), scores[0].tolist()), 1)
        return [{"id": items[row]["_id"], "score": score, "rank": rank, "title": items[row]["title"]}
                for rank, (row, score) in found if row >= 0]

    async def search(request):
        asked = await request.json()
        hits = await run_in_threadpool(answer, asked["query"], asked.get("k", 10))
        return JSONResponse({"query": asked["query"], "hits": hits})

    app = Starlette(routes=[Route("/search", search, methods=["POST"])])
    print("ready", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


def vectors(model, items, file):
    if file and file.exists():
        return numpy.load(file)
    made = model.encode([item["title"] for item in items], normalize_embeddings=True, batch_size=64)
    if file:
        numpy.save(file, made)
    return made


if __name__ == "__main__":
    main()
