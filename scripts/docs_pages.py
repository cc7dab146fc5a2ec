"""Hook of mkdocs (mkdocs.yml): makes the site of the repository's documents, wherever they are.

Every document keeps its path, so that its relative links are the same here and on a code forge. A file that a document links to is
copied; source code becomes a page. A linked folder becomes a list of its documents. The navigation follows the table in README.md.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
# Shown as they are; other files are shown as code.
SHOWN = {".svg", ".png", ".json"}
# Mermaid, which draws diagrams. Without this file, pages with a diagram load it from the network, or show the diagram's text.
MERMAID = os.environ.get("MERMAID", "")
MERMAID_PATH = "assets/mermaid.min.js"


class GeneratedPage(File):
    """A page of a file that is no Markdown, or of a folder, under the path that documents link to."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    documents, others = reachable_paths()
    for path in documents:
        files.append(file_at(path, config))
    for path in others:
        if (ROOT / path).is_dir():
            files.append(page_at(path, folder_page(path), f"{path}/index.html", config))
        elif Path(path).suffix in SHOWN:
            files.append(file_at(path, config))
        else:
            files.append(page_at(path, source_page(path), f"{path}.html", config))
    files.append(file_at("scripts/docs.css", config))
    if MERMAID:
        files.append(File.generated(config, MERMAID_PATH, abs_src_path=MERMAID))
    config.nav = navigation(documents)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Removes the backslash of `\\|` inside code in tables, as code forges do; Python-Markdown would show it."""
    code = re.compile(r"`[^`]*`")
    lines = markdown.split("\n")
    rows = (code.sub(lambda found: found[0].replace("\\|", "|"), line) if line.startswith("|") else line for line in lines)
    return "\n".join(rows)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links a path in code, such as `docs/search.md`, to its page if it has one."""

    def linked(code: re.Match) -> str:
        target = files.get_file_from_path(code[1])
        if target is None or not target.is_documentation_page():
            return code[0]
        return f'<a href="{target.url_relative_to(page.file)}">{code[0]}</a>'

    # not inside a link
    return re.sub(r'(?<!">)<code>([\w./-]+)</code>', linked, html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if not MERMAID or 'class="mermaid"' not in output:
        return output
    return output.replace("</head>", f'<script src="{get_relative_url(MERMAID_PATH, page.url)}"></script></head>', 1)


def file_at(path: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)


def page_at(path: str, text: str, target: str, config: MkDocsConfig) -> File:
    page = GeneratedPage.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
    page.dest_uri = target
    return page


def reachable_paths() -> tuple[list[str], list[str]]:
    """The documents, with those that they link to elsewhere in the repository, and the other paths that they link to."""
    documents = DOCUMENTS + sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))
    others = set()
    for document in documents:
        for path in linked_paths(document):
            if not path.endswith(".md"):
                others.add(path)
            elif path not in documents:
                documents.append(path)
    return documents, sorted(others)


def linked_paths(document: str) -> set[str]:
    """Paths in the repository that a document links to, of those that exist: mkdocs reports the others."""
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / document).read_text())
    paths = (posixpath.normpath(posixpath.join(posixpath.dirname(document), link)) for link in links if ":" not in link)
    return {path for path in paths if (ROOT / path).exists() and not path.startswith("..")}


def title_of(path: Path) -> str:
    return path.read_text().split("\n", 1)[0].removeprefix("# ")


def folder_page(folder: str) -> str:
    documents = sorted((ROOT / folder).glob("*.md"))
    lines = [f"- [{title_of(document)}]({Path(folder).name}/{document.name})" for document in documents]
    return f"# {Path(folder).name.capitalize()}\n\n" + "\n".join(lines) + "\n"


def source_page(path: str) -> str:
    return f"# {path}\n\n~~~~~~{Path(path).suffix[1:]}\n{(ROOT / path).read_text()}\n~~~~~~\n"


def navigation(documents: list[str]) -> list:
    """README.md, the pages in the order of its table, then the others. The documents of a folder in the table are a section."""
    table = (ROOT / "README.md").read_text().split("\n## Documentation\n", 1)[1]
    left = dict.fromkeys(documents)
    nav: list = [{"Overview": "README.md"}]
    del left["README.md"]
    for link in re.findall(r"\]\(([^)#\s]+)", table):
        if link.endswith("/"):
            inside = [path for path in left if path.startswith(link)]
            nav.append({Path(link).name.capitalize(): [{"All": link.rstrip("/")}, *inside]})
        else:
            inside = [link]
            nav.append(link)
        for path in inside:
            left.pop(path, None)
    return nav + list(left)
