"""Packs built programs for machines without a compiler; scripts/dist.sh calls it. Writes SHA256SUMS beside the results.

    dist.py --programs DIR --torch DIR --out DIR [--level 1..9] folder|tarball|wheel...

folder   souk-VERSION-linux-ARCH/: programs, libtorch, configs, licences, and a bill of materials
tarball  that folder, packed
wheel    programs, configs and the Python package for pip; libtorch comes from the package torch

--programs has `souk`, `souk-engine` and `libsouk_python.so`, --torch the folders torch/ and nvidia/ that scripts/setup.sh made. The same input gives the
same bytes.
"""

import argparse
import base64
import gzip
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ["souk", "souk-engine"]
MODULE = "libsouk_python.so"
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
FEATURES = "souk/full,souk-cli/full,souk-search/full"
# what `souk-engine` loads of CUDA even on a CPU
LIBTORCH = ["torch/version.py", "torch/lib/*", "nvidia/cu13/lib/libcudart.so.*", "nvidia/cu13/lib/libcupti.so.*"]
# the earliest date that zip can store
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=["folder", "tarball", "wheel"])
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--torch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--level", type=int, default=6, help="level of compression")
    options = parser.parse_args()
    for program in [*PROGRAMS, MODULE]:
        if not (options.programs / program).exists():
            sys.exit(f"error: {options.programs / program} is missing; run scripts/dist.sh, which builds it")
    options.out.mkdir(parents=True, exist_ok=True)
    folder = make_folder(options)
    made = []
    if "wheel" in options.kinds:
        made.append(make_wheel(folder, options))
    if "tarball" in options.kinds:
        made.append(make_tarball(folder, options.level))
    if "folder" not in options.kinds:
        shutil.rmtree(folder)
    if made:
        lines = [f"{sha256(file.read_bytes())}  {file.name}\n" for file in sorted(made)]
        (options.out / "SHA256SUMS").write_text("".join(lines))
    for path in made or [folder]:
        print(path)


def make_folder(options):
    folder = options.out / f"souk-{version()}-linux-{platform.machine()}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for program in PROGRAMS:
        (folder / "bin" / program).write_bytes(stripped(options.programs / program))
        (folder / "bin" / program).chmod(0o755)
    for pattern in LIBTORCH:
        files = sorted(options.torch.glob(pattern))
        if not files:
            sys.exit(f"error: {options.torch} has no {pattern}; delete the folder and run `make setup`")
        for file in files:
            target = folder / "libtorch" / file.relative_to(options.torch)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    shutil.copytree(ROOT / "configs", folder / "configs")
    for name in [*LICENCES, "README.md", "CHANGELOG.md"]:
        shutil.copy2(ROOT / name, folder)
    (folder / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(), indent=1) + "\n")
    return folder


def stripped(program):
    """Content without debug symbols, but with the names of functions, which backtraces show."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "--strip-debug", "-o", file.name, program], check=True)
        return Path(file.name).read_bytes()


def make_tarball(folder, level):
    def plain(entry):
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "root", "root"
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    file = folder.with_name(folder.name + ".tar.gz")
    with open(file, "wb") as raw, gzip.GzipFile("", "wb", compresslevel=level, fileobj=raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in [folder, *sorted(folder.rglob("*"))]:
                archive.add(path, path.relative_to(folder.parent), recursive=False, filter=plain)
    return file


def make_wheel(folder, options):
    name = f"souk-{version()}"
    tag = f"cp310-abi3-manylinux_{glibc(options.programs)}_{platform.machine()}"
    info = f"{name}.dist-info"
    files = {f"{name}.data/scripts/{program}": (folder / "bin" / program).read_bytes() for program in PROGRAMS}
    for config in sorted((folder / "configs").glob("*.toml")):
        files[f"{name}.data/data/share/souk/configs/{config.name}"] = config.read_bytes()
    for licence in LICENCES:
        files[f"{info}/licenses/{licence}"] = (folder / licence).read_bytes()
    files[f"{info}/sboms/souk.cdx.json"] = (folder / "sbom.cdx.json").read_bytes()
    for module in sorted([*(ROOT / "python/souk").glob("*.py"), ROOT / "python/souk/py.typed"]):
        files[f"souk/{module.name}"] = module.read_bytes()
    files["souk/_native.abi3.so"] = stripped(options.programs / MODULE)
    files[f"{info}/METADATA"] = metadata().encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: souk\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = "".join(f"{path},sha256={record_hash(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = options.out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=options.level) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            archive.writestr(entry, content, compresslevel=options.level)
    return wheel


def metadata():
    readme = (ROOT / "README.md").read_text()
    return f"""Metadata-Version: 2.4
Name: souk
Version: {version()}
Summary: {field("Cargo.toml", 'description = "(.*)"')}
License-Expression: {field("Cargo.toml", 'license = "(.*)"')}
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.10
Requires-Dist: torch=={torch_version()}
Requires-Dist: numpy>=1.26
Requires-Dist: httpx>=0.27; extra == "client"
Provides-Extra: client
Description-Content-Type: text/markdown

{readme}"""


def bill_of_materials():
    """CycloneDX 1.6: every crate that is linked into the programs, and libtorch."""
    target = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    target = re.search(r"^host: (.*)$", target, re.M)[1]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", FEATURES, "--filter-platform", target]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in graph["packages"]}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    linked = [id for id, package in packages.items() if package["name"] in ("souk-cli", "souk-launcher", "souk-python")]
    for id in linked:
        for dependency in nodes[id]["deps"]:
            used = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if used and dependency["pkg"] not in linked:
                linked.append(dependency["pkg"])
    locked = re.findall(r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', (ROOT / "Cargo.lock").read_text())
    hashes = {(name, version): checksum for name, version, checksum in locked}
    foreign = sorted((packages[id] for id in linked if packages[id]["source"]), key=lambda p: (p["name"], p["version"]))
    components = [crate_component(package, hashes) for package in foreign]
    torch = torch_version()
    components.append({"type": "library", "name": "torch", "version": torch, "purl": f"pkg:pypi/torch@{torch}",
                       "bom-ref": f"pkg:pypi/torch@{torch}", "licenses": [{"expression": "BSD-3-Clause"}]})
    this = {"type": "application", "name": "souk", "version": version(), "bom-ref": "souk"}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": this},
            "components": components, "dependencies": dependencies(foreign, nodes, packages)}


def crate_component(package, hashes):
    component = {"type": "library", "name": package["name"], "version": package["version"], "purl": purl(package),
                 "bom-ref": purl(package)}
    if package["license"]:
        # cargo still accepts the old spelling `MIT/Apache-2.0`
        component["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    if checksum := hashes.get((package["name"], package["version"])):
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return component


def dependencies(foreign, nodes, packages):
    refs = {package["id"]: purl(package) for package in foreign}
    edges = [{"ref": "souk", "dependsOn": sorted(refs.values())}]
    for package in foreign:
        uses = {refs[d["pkg"]] for d in nodes[package["id"]]["deps"] if d["pkg"] in refs}
        edges.append({"ref": refs[package["id"]], "dependsOn": sorted(uses)})
    return edges


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def glibc(programs):
    """Newest version of glibc that the programs need, as `2_34`."""
    versions = set()
    for program in [*PROGRAMS, MODULE]:
        symbols = subprocess.run(["objdump", "-T", programs / program], check=True, capture_output=True, text=True).stdout
        versions |= {tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)}
    return "%d_%d" % max(versions)


def version():
    return field("Cargo.toml", r'version = "(.*)"')


def torch_version():
    return field("scripts/places.sh", "TORCH_VERSION=(.*)")


def field(file, pattern):
    return re.search(f"^{pattern}$", (ROOT / file).read_text(), re.M)[1]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def record_hash(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
