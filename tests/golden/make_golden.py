"""Makes the golden files of this folder, and checks an exported model against sentence-transformers.

    make_golden.py [--out DIR] [--seed N] [--minilm MODEL_DIR]
    make_golden.py --verify-export MODEL_DIR --texts texts.json --vectors vectors.jsonl [--query] [--tolerance X]

The first form takes a seed and writes one folder per case: a small random model in Hugging Face layout with the inputs
and outputs of transformers, PEFT or sentence-transformers beside it; `minilm/` only when the folder of the real
all-MiniLM-L6-v2 is given. The second form prints the largest difference and exits with 1 when it exceeds the
tolerance. Nothing is downloaded.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
sys.dont_write_bytecode = True

import torch
import transformers

from backbones import make_backbones
from generative import make_generative
from relevance import make_relevance_folders
from sentence import make_minilm, make_sentence_folders, verify_export
from supervised import make_supervised


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    if arguments.verify_export:
        same = verify_export(
            arguments.verify_export, arguments.texts, arguments.vectors, arguments.query, arguments.tolerance
        )
        return 0 if same else 1
    make_backbones(arguments.out, arguments.seed)
    make_sentence_folders(arguments.out, arguments.seed)
    make_supervised(arguments.out)
    make_relevance_folders(arguments.out, arguments.seed)
    make_generative(arguments.out)
    if arguments.minilm:
        make_minilm(arguments.out / "minilm", arguments.minilm, arguments.seed)
    open_permissions(arguments.out)
    return 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minilm", type=Path, help="the real all-MiniLM-L6-v2 folder")
    parser.add_argument("--verify-export", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--texts", type=Path, help="a JSON list of strings")
    parser.add_argument("--vectors", type=Path, help="one JSON array of numbers per line")
    parser.add_argument("--query", action="store_true", help="encode the texts as queries, not as items")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    if arguments.verify_export and not (arguments.texts and arguments.vectors):
        parser.error("--verify-export needs --texts and --vectors")
    return arguments


def open_permissions(out: Path):
    """safetensors writes files that only their owner may read."""
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
