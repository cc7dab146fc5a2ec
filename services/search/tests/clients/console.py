"""The console of a running search service, in a browser, as a reader uses it: search, filter, compare and vote, promote.

Prints a line for each proof, and ends with 1 at the first that fails. The service must know a version with a report that
it does not serve: that one is promoted, and stays so. The browser is the one that SOUK_CHROMIUM names.
"""

import argparse
import json
import os
import sys
import traceback
import urllib.request
from pathlib import Path

from playwright.sync_api import Error, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
SECONDS = 20
# An index may have to be built first.
PROMOTE_SECONDS = 300
VOTER = "console.py"


class Failed(Exception):
    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("admin_key", metavar="ADMIN_KEY")
    parser.add_argument("--query", default="black shoes for women")
    parser.add_argument("--shots", metavar="DIR", type=Path, help="keep a picture of each view here")
    options = parser.parse_args()
    service = Service(options.base_url.rstrip("/"), options.admin_key)
    expect.set_options(timeout=1e3 * SECONDS)
    try:
        with sync_playwright() as playwright:
            path = os.environ.get("SOUK_CHROMIUM") or CHROMIUM
            # a sandbox needs rights that a container does not give
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            Reader(browser, service, options).prove()
            browser.close()
    except (Failed, AssertionError, Error) as failure:
        sys.exit(f"FAILED: {failure}")
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"FAILED: {type(error).__name__}: {error}")


class Service:
    """What the service itself says, to compare with what the console shows."""

    def __init__(self, base, key):
        self.base, self.key = base, key

    def ask(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)


class Reader:
    def __init__(self, browser, service, options):
        self.service, self.query, self.shots = service, options.query, options.shots
        self.page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        self.page.set_default_timeout(1e3 * SECONDS)
        self.troubles = []
        self.has_key = False
        self.page.on("console", self.note)
        self.page.on("pageerror", lambda error: self.troubles.append(f"an exception: {error}"))
        violation = "against the content policy: {}".format
        self.page.expose_binding("soukViolation", lambda _, what: self.troubles.append(violation(what)))
        told = "`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`"
        # without the name of who votes a dialog would ask for it
        self.page.add_init_script(
            f"addEventListener('securitypolicyviolation', (event) => soukViolation({told}));"
            f"localStorage.setItem('souk-voter', {json.dumps(VOTER)});"
        )

    def note(self, message):
        # a browser writes each refusal down; those before the key is given are what the console asks for it on
        asked = not self.has_key and "status of 401" in message.text
        if message.type in ("error", "warning") and not asked:
            self.troubles.append(f"in the browser's console: {message.text} ({message.location.get('url')})")

    def prove(self):
        self.page.goto(f"{self.service.base}/")
        for step in (self.search, self.filter, self.compare, self.promote):
            said = step()
            if self.shots:
                self.shots.mkdir(parents=True, exist_ok=True)
                self.page.screenshot(path=self.shots / f"{step.__name__}.png", full_page=True)
            # binding calls and messages of the browser come when it is next asked for something
            self.page.wait_for_timeout(100)
            if self.troubles:
                raise Failed(f"{step.__name__}: {'; '.join(self.troubles)}")
            print(f"proved: console: {said}", flush=True)

    def at(self, selector):
        return self.page.locator(selector)

    def give_key(self):
        expect(self.at("#ask-dialog")).to_be_visible()
        self.at("#ask-input").fill(self.service.key)
        self.at("#ask-ok").click()
        expect(self.at("#ask-dialog")).to_be_hidden()
        self.has_key = True

    def found(self, **more):
        return [hit["id"] for hit in self.service.ask("/search", {"query": self.query, "k": 10} | more)["hits"]]

    def search(self):
        # the page asks as soon as it is open, because it reads the fields that there are
        self.give_key()
        self.at("#search-query").fill(self.query)
        self.at("#search-query").press("Enter")
        expect(self.at("#search-status")).to_contain_text(f"hits for “{self.query}”")
        ids = self.found()
        expect(self.at("#hits > li .id")).to_have_text(ids)
        return f"a search shows the {len(ids)} hits that the service finds"

    def filter(self):
        """By a value that some of the hits have, so that the filter leaves some out."""
        hits = self.service.ask("/search", {"query": self.query, "k": 10})["hits"]
        texts = {one["name"] for one in self.service.ask("/fields")["fields"] if "text" in one["kinds"]}
        values = [(field, hit[field]) for field in sorted(texts) for hit in hits if isinstance(hit.get(field), str)]
        values = [one for one in values if one[1].strip() == one[1] != "" and values.count(one) < len(hits)]
        if not values:
            raise Failed(f"filter: no field tells the hits for “{self.query}” apart: give another --query")
        field, value = values[0]
        self.at("#filter-field").select_option(field)
        self.at("#filter-value").fill(value)
        self.at("#filter-apply").click()
        expect(self.at("#search-chips button").first).to_contain_text(f"{field}: {value}")
        ids = self.found(filter={"must": [{"field": field, "eq": value}]})
        expect(self.at("#hits > li .id")).to_have_text(ids)
        return f"the filter {field}: {value} leaves the {len(ids)} hits that the service finds"

    def compare(self):
        self.at("#tab-compare").click()
        self.at("#compare-query").fill(self.query)
        self.at("#compare-left").select_option("dense")
        self.at("#compare-right").select_option("lexical")
        self.at("#compare-button").click()
        expect(self.at("#compare-status")).to_contain_text("Which page answers")
        expect(self.at("#pair .tag")).to_have_count(0)
        items = self.at("#pair section[data-side=left] article[data-item]")
        items.nth(0).get_by_role("button", name="Good", exact=True).click()
        items.nth(1).get_by_role("button", name="Not good", exact=True).click()
        before = self.votes()
        self.at("#vote-a").click()
        tags = self.at("#pair .tag")
        expect(tags).to_have_count(2)
        # the names are those of the version that made the pages
        served = self.service.ask("/models")["served"]["version"]
        dense, lexical = f"{served}/dense", f"{served}/lexical"
        if sorted(tags.all_inner_texts()) != [dense, lexical]:
            raise Failed(f"compare: the pages are told to be {tags.all_inner_texts()}")
        won, lost = tags.all_inner_texts()
        after = self.votes()
        for what, more in ((f"{won} better", 1), (f"{lost} better", 0), (f"items of {won}", 2)):
            if after[what] != before[what] + more:
                raise Failed(f"compare: {what}: {before[what]} before the vote and {after[what]} after")
        heading = self.page.get_by_role("heading", name=f"{dense} against {lexical}", exact=True)
        summary = self.at("#summary article").filter(has=heading)
        expect(summary).to_contain_text(f"{won} better: {after[f'{won} better']}")
        return f"two pages are compared blind; the vote for {won} and the grades are counted and shown"

    def votes(self):
        """What was counted for the two channels so far."""
        served = self.service.ask("/models")["served"]["version"]
        dense, lexical = f"{served}/dense", f"{served}/lexical"
        pairs = self.service.ask("/votes/summary")["pairs"]
        pair = next((one for one in pairs if (one["left"], one["right"]) == (dense, lexical)), {})
        counts = {f"{dense} better": "num_good", f"{lexical} better": "num_bad"}
        counts |= {f"items of {dense}": "left_items", f"items of {lexical}": "right_items"}
        return {what: pair.get(name, 0) for what, name in counts.items()}

    def promote(self):
        models = self.service.ask("/models")
        served = models["served"]["version"]
        others = [one["version"] for one in models["versions"] if one["report"] and one["version"] != served]
        if not others:
            raise Failed(f"promote: there is no version with a report beside {served}: register one")
        version = others[-1]
        self.at("#tab-models").click()
        expect(self.at(f'tr.served[data-version="{served}"]')).to_be_visible()
        self.page.get_by_role("button", name=f"Promote {version}", exact=True).click()
        self.at("#ask-ok").click()
        expect(self.at(f'tr.served[data-version="{version}"]')).to_be_visible(timeout=1e3 * PROMOTE_SECONDS)
        expect(self.at("tr.served")).to_have_count(1)
        now = self.service.ask("/models")["served"]["version"]
        if now != version:
            raise Failed(f"promote: the console shows {version} as served, and the service serves {now}")
        answered = self.service.ask("/search", {"query": self.query})["model"]
        if answered != version:
            raise Failed(f"promote: a search is answered by {answered}")
        return f"{version} is promoted in the place of {served}, and answers searches"


if __name__ == "__main__":
    main()
