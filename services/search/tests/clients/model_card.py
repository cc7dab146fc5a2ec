"""Reads a model card as the Hugging Face hub does, and prints its front matter and results as JSON.

    model_card.py README.md
"""

import json
import sys

from huggingface_hub import ModelCard


def main(path: str) -> None:
    card = ModelCard.load(path, ignore_metadata_errors=False)
    data = card.data
    results = [
        {"task": found.task_type, "data": found.dataset_name, "split": found.dataset_split, "metric": found.metric_type,
         "value": found.metric_value}
        for found in data.eval_results or []
    ]
    fields = {name: data.get(name) for name in ("library_name", "pipeline_tag", "tags", "base_model", "language")}
    print(json.dumps({**fields, "model_name": data.model_name, "results": results, "text": card.text}))


if __name__ == "__main__":
    main(sys.argv[1])
