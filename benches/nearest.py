"""Benchmarks Souk's index against hnswlib, faiss and usearch, with the same vectors and parameters.

Takes the built bench `nearest`, a model and a data folder. The vectors are those of the catalogue's titles; if there are too few,
halves of titles are added, so that all vectors are real text embeddings. Prints for each library build time, memory, and queries
per second with recall@K at each `ef` (column `ef`).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

LINKS, BUILD_REACH = 16, 200
EF_VALUES = (100, 125, 150, 200, 300, 400)
ROUNDS = 5
LEAST_RECALL = 0.95


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, help="the built bench benches/nearest.rs")
    parser.add_argument("--souk", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--work", type=Path, help="folder to cache the vectors in")
    parser.add_argument("--peer", choices=PEERS, help="measure one library (used internally)")
    options = parser.parse_args()
    if options.peer:
        return measure(options.peer, options.work, options.k)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(exist_ok=True)
        width = embed(options, work)
        rows = []
        for name in PEERS:
            arguments = [sys.executable, __file__, "--peer", name, "--work", work, "-k", str(options.k)]
            rows += lines(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)
        with tempfile.TemporaryDirectory(dir=work) as out:
            arguments = [options.bench, work / "items.f32", work / "queries.f32", str(width), str(options.k), out]
            rows += lines(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)
    show(rows, options.k)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def show(rows, k):
    print(f"| | build, s | MiB | ef | recall@{k} | queries/s, 1 thread | 2 threads |")
    print("|---|---|---|---|---|---|---|")
    names = list(dict.fromkeys(row["name"] for row in rows))
    best = {}
    for name in names:
        built = next(row for row in rows if row["name"] == name and "build" in row)
        for row in (row for row in rows if row["name"] == name and "ef" in row):
            first = row["ef"] == EF_VALUES[0]
            head = f"{built['build']:.1f} | {built['bytes'] / 2**20:.0f}" if first else " | "
            label = (name if name in PEERS else f"Souk, {name}") if first else ""
            print(f"| {label} | {head} | {row['ef']} | {row['recall']:.4f} | {row['one']:.0f} | {row['two']:.0f} |")
            if row["recall"] >= LEAST_RECALL:
                best[name] = max(best.get(name, 0), row["one"])
    peer = max((name for name in best if name in PEERS), key=best.get)
    for name in (name for name in best if name not in PEERS):
        print(f"Souk {name}: {best[name] / best[peer]:.2f} times {peer}, the fastest alternative, at recall >= {LEAST_RECALL}")


def embed(options, work):
    """Writes items.f32 and queries.f32 unless they exist; returns the dimensions."""
    width_file = work / "width"
    if width_file.exists():
        return int(width_file.read_text())
    titles = [json.loads(line)["title"] for line in open(options.data / "corpus.jsonl")]
    texts = dict.fromkeys(title for title in titles if title)
    for title in titles:
        words = title.split()
        texts.update(dict.fromkeys((" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]))))
    texts = [text for text in texts if text][: options.items]
    queries = [json.loads(line)["text"] for line in open(options.data / "queries.jsonl")]
    queries = list(dict.fromkeys(queries))[: options.queries]
    for name, kind, some in (("items", "item", texts), ("queries", "query", queries)):
        command = [options.souk, "embed", "--model", options.model, "--kind", kind]
        answer = subprocess.run(command, input="\n".join(some), check=True, stdout=subprocess.PIPE, text=True).stdout
        vectors = numpy.array(lines(answer), "float32")
        vectors /= numpy.linalg.norm(vectors, axis=1, keepdims=True)
        vectors.tofile(work / f"{name}.f32")
    width_file.write_text(str(vectors.shape[1]))
    return vectors.shape[1]


class Hnswlib:
    def build(self, items):
        import hnswlib

        self.index = hnswlib.Index("ip", items.shape[1])
        self.index.init_index(len(items), M=LINKS, ef_construction=BUILD_REACH)
        self.index.add_items(items, num_threads=2)

    def search(self, queries, k, ef, threads):
        self.index.set_ef(ef)
        return self.index.knn_query(queries, k, num_threads=threads)[0]


class Faiss:
    def build(self, items):
        import faiss

        self.faiss = faiss
        faiss.omp_set_num_threads(2)
        self.index = faiss.IndexHNSWFlat(items.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        self.index.hnsw.efConstruction = BUILD_REACH
        self.index.add(items)

    def search(self, queries, k, ef, threads):
        self.faiss.omp_set_num_threads(threads)
        self.index.hnsw.efSearch = ef
        return self.index.search(queries, k)[1]


class Usearch:
    kind = "f32"

    def build(self, items):
        from usearch.index import Index

        width = items.shape[1]
        self.index = Index(ndim=width, metric="ip", dtype=self.kind, connectivity=LINKS, expansion_add=BUILD_REACH)
        self.index.add(numpy.arange(len(items)), items, threads=2)

    def search(self, queries, k, ef, threads):
        self.index.expansion_search = ef
        return self.index.search(queries, k, threads=threads).keys


class UsearchBytes(Usearch):
    kind = "i8"


PEERS = {"hnswlib": Hnswlib, "faiss": Faiss, "usearch": Usearch, "usearch int8": UsearchBytes}


def resident():
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def measure(name, work, k):
    width = int((work / "width").read_text())
    items = numpy.fromfile(work / "items.f32", "float32").reshape(-1, width)
    queries = numpy.fromfile(work / "queries.f32", "float32").reshape(-1, width)
    before = resident()
    begin = time.perf_counter()
    peer = PEERS[name]()
    peer.build(items)
    build = time.perf_counter() - begin
    print(json.dumps({"name": name, "build": build, "bytes": resident() - before}))
    # after measuring memory, because this needs more
    truth = [set(numpy.argpartition(items @ query, -k)[-k:].tolist()) for query in queries]
    for ef in EF_VALUES:
        rates = {}
        for threads in (1, 2):
            seconds = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                found = peer.search(queries, k, ef, threads)
                seconds.append(time.perf_counter() - begin)
            rates[threads] = len(queries) / min(seconds)
        right = sum(len(truth.intersection(row)) for truth, row in zip(truth, numpy.asarray(found).tolist()))
        recall = right / (len(queries) * k)
        print(json.dumps({"name": name, "ef": ef, "recall": recall, "one": rates[1], "two": rates[2]}))


main()
