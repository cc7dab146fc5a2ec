"""The console of a running search service, in a browser, as a reader uses it: search, filter, compare and vote, look at the
map and at what the trainer does, promote.

Prints a line for each proof, and ends with 1 at the first that fails. The service must know a version with a report that
it does not serve: that one is promoted, and stays so. The browser is the one that SOUK_CHROMIUM names.
"""

import argparse
import json
import os
import sys
import traceback
import urllib.parse
import urllib.request
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from playwright.sync_api import Error, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
SECONDS = 20
# An index may have to be built first.
PROMOTE_SECONDS = 300
VOTER = "console.py"
# Rows that the console shows at first of a list that can be long.
FEW = {"rounds": 10, "changes": 10, "unclicked": 20}
MAP_FIELDS = ("category", "department", "product_class", "product_type", "brand", "color")
MAP_GROUPS = 8
PICTURE = {"width": 1280, "height": 1360}


class Failed(Exception):
    pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", metavar="BASE_URL")
    parser.add_argument("admin_key", metavar="ADMIN_KEY", help="empty if the service has no keys")
    parser.add_argument("--query", default="black shoes for women")
    parser.add_argument("--shots", metavar="DIR", type=Path, help="keep a picture of each view here")
    parser.add_argument("--pictures", metavar="DIR", type=Path, help="draw the documentation's pictures here, and promote nothing")
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


def decimal(value):
    """A number with one decimal, as the console shows it."""
    return "–" if value is None else str(Decimal(value).quantize(Decimal("0.1"), ROUND_HALF_UP))


def signed(value):
    if value is None:
        return "–"
    size = decimal(abs(value))
    return f"±{size}" if size == "0.0" else f"{'+' if value > 0 else '−'}{size}"


def verdict(told):
    if told["ended_at"] is None:
        return "running"
    if told["passed"]:
        return "passed"
    return "refused" if told["version"] else "failed"


def significance(row):
    if row["difference"] is None:
        return "– no values"
    if not row["significant"]:
        return "○ not significant"
    return "▲ better" if row["difference"] > 0 else "▼ worse"


def words(count, one, many):
    return f"{count:,} {one if count == 1 else many}"


class Reader:
    def __init__(self, browser, service, options):
        self.service, self.query, self.shots, self.pictures = service, options.query, options.shots, options.pictures
        self.page = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light").new_page()
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
        steps = [self.search, self.filter, self.compare, self.map, self.training]
        steps += [self.rounds, self.round] if self.measured() else []
        steps.append(self.draw if self.pictures else self.promote)
        for step in steps:
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
        if self.service.key:
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

    def map(self):
        """The points, the groups of the legend, and a search for the item of a point."""
        texts = [one["name"] for one in self.service.ask("/fields")["fields"] if "text" in one["kinds"]]
        field = next((name for name in MAP_FIELDS if name in texts), None)
        points = self.service.ask(f"/map?field={field}" if field else "/map")["points"]
        self.at("#tab-map").click()
        expect(self.at("#map-field")).to_have_value(field or "")
        expect(self.at("#map-svg a")).to_have_count(len(points))
        groups = Counter(one["group"] for one in points if one["group"] is not None).most_common(MAP_GROUPS)
        shown = [f"{name}, {words(count, 'item', 'items')}" for name, count in groups]
        legend = self.at("#map-legend button")
        labels = [one.get_attribute("aria-label") for one in legend.all()]
        if labels[: len(shown)] != shown:
            raise Failed(f"map: the legend says {labels}, and the service {shown}")
        counts = [int(one.replace(",", "")) for one in self.at("#map-legend .count").all_inner_texts()]
        if sum(counts) != len(points):
            raise Failed(f"map: the groups have {counts} of {len(points)} items")
        legend.first.click()
        expect(self.at("#map-svg a:not([hidden])")).to_have_count(len(points) - counts[0])
        legend.first.click()
        expect(self.at("#map-svg a:not([hidden])")).to_have_count(len(points))
        self.at("#map-svg a").first.focus()
        item = self.at("#map-svg a").first.get_attribute("data-item")
        title = next(one["title"] for one in points if one["id"] == item)
        expect(self.at("#map-tip")).to_contain_text(title)
        self.page.keyboard.press("Enter")
        expect(self.at("#search-query")).to_have_value(title)
        self.page.go_back()
        expect(self.at("#view-map")).to_be_visible()
        by = field or "no field"
        return f"the map shows the {len(points)} items that the service draws, by {by}, and opens a search for one"

    def training(self):
        self.at("#tab-training").click()
        answer, rounds = self.service.ask("/training"), self.service.ask("/rounds")["rounds"]
        log, now = answer["log"], answer["now"]
        if log is None and now is None and rounds is None:
            expect(self.at("#training-empty")).to_contain_text("search.training")
            expect(self.at("#rounds-part")).to_be_hidden()
            return "without a trainer the console says which setting connects one"
        if now is not None:
            names = {"opening": "Starting", "reading": "Starting"}
            expect(self.at("#now [aria-current=step]")).to_have_text(names.get(now["doing"], now["doing"].capitalize()))
            expect(self.at("#now .stages tbody th")).to_have_text([one["stage"] for one in now["stages"]])
            expect(self.at("#now .alarms li")).to_have_count(len(now["alarms"]))
        if log is not None:
            expect(self.at("#charts figure")).to_have_count(sum(bool(curve) for curve in log.values()))
        if rounds is None:
            expect(self.at("#rounds-status")).to_contain_text("search.training")
        elif not rounds:
            expect(self.at("#rounds-status")).to_contain_text("No rounds yet")
        return f"what the trainer does is shown: {now['doing']}" if now else "the curves of a training folder are shown"

    def rounds(self):
        """The link of each round, its version, its verdict and the reasons for it."""
        rounds = self.service.ask("/rounds")["rounds"]
        rows = self.at("#rounds tr[data-round]")
        expect(rows).to_have_count(min(len(rounds), FEW["rounds"]))
        if len(rounds) > FEW["rounds"]:
            self.page.get_by_role("button", name="Show all").click()
        expect(rows).to_have_count(len(rounds))
        expect(self.at("#rounds th a")).to_have_text([f"Round {one['number']:,}" for one in rounds])
        expect(self.at("#rounds .verdict")).to_contain_text([verdict(one) for one in rounds])
        expect(self.at("#rounds [data-name=Version]")).to_contain_text([one["version"] or "–" for one in rounds])
        reasons = [reason.replace("`", "").replace(" -> ", " → ") for one in rounds for reason in one["reasons"]]
        expect(self.at("#rounds .reasons li")).to_have_text(reasons)
        return f"the {len(rounds)} rounds are shown with their versions, verdicts and {len(reasons)} reasons"

    def measured(self):
        """The number of the newest round with measurements; none without a trainer, or before its first round."""
        numbers = [one["number"] for one in self.service.ask("/rounds")["rounds"] or [] if one["version"]]
        return next((number for number in numbers if self.service.ask(f"/rounds/{number}")["splits"]), None)

    def round(self):
        number = self.measured()
        told = self.service.ask(f"/rounds/{number}")
        self.page.get_by_role("link", name=f"Round {number:,}", exact=True).click()
        expect(self.at("#round h1")).to_have_text(f"Round {number:,}")
        expect(self.at("#round > .round-title .verdict")).to_contain_text(verdict(told))
        for split in told["splits"]:
            self.split(split)
        self.unclicked(told["unclicked"])
        changed = [split for split in told["splits"] if split["changes"] and split["changes"]["queries"]]
        if changed:
            self.follow(changed[0]["split"])
        rows, splits = sum(len(split["rows"]) for split in told["splits"]), words(len(told["splits"]), "split", "splits")
        return f"round {number} shows the {rows} rows of its {splits}, and the queries that changed"

    def split(self, split):
        """The gate's rows, and the queries that changed most with both hit lists of the first."""
        part = self.at(f"#round [data-split={json.dumps(split['split'])}]")
        slices = dict.fromkeys(row["slice"] for row in split["rows"])
        rows = [row for name in slices for row in split["rows"] if row["slice"] == name]
        expect(part.locator("[data-metric] th")).to_have_text([row["metric"] for row in rows])
        for column, texts in (
            (1, [decimal(row["served"]) for row in rows]),
            (2, [decimal(row["candidate"]) for row in rows]),
            (3, [signed(row["difference"]) for row in rows]),
            (6, [significance(row) for row in rows]),
        ):
            expect(part.locator(f"[data-metric] > :nth-child({column + 1})")).to_have_text(texts)
        changes = split["changes"]
        if changes is None:
            return expect(part.locator(".changes")).to_contain_text("not kept")
        counts = [f"{words(changes[way], 'query', 'queries')} {way}" for way in ("better", "same", "worse")]
        expect(part.locator(".legend span")).to_have_text(counts)
        queries = sorted(changes["queries"], key=lambda one: one["served"] - one["candidate"])
        gains = [one["query"] for one in queries if one["candidate"] > one["served"]][: FEW["changes"]]
        losses = [one["query"] for one in reversed(queries) if one["candidate"] < one["served"]][: FEW["changes"]]
        listed = [one.get_attribute("data-query") for one in part.locator("[data-query]").all()]
        if sorted(listed) != sorted(gains + losses):
            raise Failed(f"round: the queries {listed} are shown, and the largest changes are {gains + losses}")
        if not listed:
            return None
        first = next(one for one in queries if one["query"] == listed[0])
        part.locator("[data-query] summary").first.click()
        pages = part.locator("[data-query]").first.locator(".pages-of-query section")
        for page, hits in ((pages.first, first["served_hits"]), (pages.last, first["candidate_hits"])):
            expect(page.locator("li > [dir]")).to_have_text([hit["title"] for hit in hits])
            levels = [hit["level"] or "–" for hit in hits]
            expect(page.locator(".level")).to_have_text(levels)
        part.locator(".filter input").fill(first["query"])
        expect(part.locator("[data-query]").first).to_have_attribute("data-query", first["query"])
        part.locator(".filter input").fill("")

    def unclicked(self, queries):
        if not queries:
            return
        first = queries[: FEW["unclicked"]]
        expect(self.at(".unclicked a")).to_have_text([one["query"] for one in first])
        expect(self.at(".unclicked .count")).to_have_text([words(one["searches"], "search", "searches") for one in first])

    def follow(self, split):
        """From a query of a round into Compare, and back."""
        row = self.at(f"#round [data-split={json.dumps(split)}] [data-query]").first
        query = row.get_attribute("data-query")
        row.locator("summary").click()
        row.get_by_role("link", name="Compare").click()
        expect(self.at("#compare-query")).to_have_value(query)
        expect(self.at("#compare-status")).not_to_contain_text("Searching")
        self.page.go_back()
        expect(self.at("#training-round")).to_be_visible()

    def draw(self):
        """The views as the documentation shows them."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        number = self.measured()
        views = {"search": f"search?{urllib.parse.urlencode({'q': self.query})}", "map": "map"}
        views |= {"rounds": "training", "round": f"training?round={number}"} if number else {}
        ready = {"search": "#hits > li", "map": "#map-svg a", "rounds": "#rounds tr[data-round]", "round": "#round h1"}
        for name, place in views.items():
            self.page.goto(f"{self.service.base}/#{place}")
            # nothing is open or chosen
            self.page.reload()
            expect(self.at(ready[name]).first).to_be_visible()
            if name == "round" and self.at("#round [data-query] summary").count():
                self.at("#round [data-query] summary").first.click()
            if name == "rounds" and self.service.ask("/training")["log"]:
                expect(self.at("#charts figure").first).to_be_visible()
            self.page.mouse.move(0, 0)
            tall = self.page.evaluate("document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": PICTURE["width"], "height": min(tall, PICTURE["height"])}
            self.page.screenshot(path=self.pictures / f"console-{name}.png", full_page=True, clip=clip)
        return f"the pictures {', '.join(f'console-{name}.png' for name in views)} are drawn"

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
