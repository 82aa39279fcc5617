#!/usr/bin/env python3
"""Checks a report.html against the report.json beside it. usage: check_html.py FOLDER; exit 0: sound.

Nothing here is kvq's: Python's HTML parser judges the page, its XML parser the drawings.
"""
import html.parser
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}
problems = []


class Page(html.parser.HTMLParser):
    """Every element is closed where it should be; texts of cells, headings and links are kept."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.rows, self.cell, self.text, self.ids = [], [], None, [], set()

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        if len(names) != len(set(names)):
            problems.append(f"<{tag}> has an attribute twice")
        for name, value in attributes:
            if name in ("src", "href", "action", "srcset", "data") or name.startswith("on"):
                problems.append(f"<{tag} {name}={value!r}> reaches outside the page")
            if name == "id":
                if value in self.ids:
                    problems.append(f"id {value!r} twice")
                self.ids.add(value)
        if tag in ("script", "iframe", "object", "embed", "link", "img"):
            problems.append(f"<{tag}> has no place here")
        if tag == "svg":
            given = dict(attributes)
            if given.get("aria-hidden") != "true" and not (given.get("role") == "img" and len(given.get("aria-label", "")) > 5):
                problems.append("an <svg> without a text alternative")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self.cell)
            self.cell = None
        if not self.open or self.open.pop() != tag:
            problems.append(f"</{tag}> does not close what is open at line {self.getpos()[0]}")

    def handle_data(self, data):
        self.text.append(data)
        if self.cell is not None:
            self.cell += data


def check_numbers(report, rows):
    """The rows of caches hold report.json's numbers, rounded as the table's column is."""
    for result in report["results"][1:]:
        if result["only_layers"] is not None or result["only_side"] is not None:
            continue
        # With quantized weights there is a column more, "w bits", the sixth.
        found = [row[:5] + row[len(row) - 7 :] for row in rows if row and row[0] == result["name"] and len(row) in (12, 13)]
        if not found:
            problems.append(f"no row of {result['name']}")
            continue
        for column, key in ((2, "bits_counted"), (3, "bits_counted_32k"), (5, "ppl"), (6, "delta_nll"), (8, "kl_mean"), (9, "kl_p99")):
            value = result[key]
            if value is None:
                continue
            if not any(abs(float(row[column]) - value) <= 0.006 * abs(value) + 0.006 * (column < 4) for row in found):
                problems.append(f"{result['name']}: {key} is {value}, the table says {[row[column] for row in found]}")


def main():
    folder = pathlib.Path(sys.argv[1])
    source = (folder / "report.html").read_text(encoding="utf-8")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    page = Page()
    page.feed(source)
    page.close()
    if page.open:
        problems.append(f"never closed: {page.open}")
    if not source.startswith("<!DOCTYPE html>"):
        problems.append("no doctype")
    for word in ("http:", "https:", "url(", "@import", "//"):
        if word in re.sub(r"<pre>.*?</pre>", "", source, flags=re.S):
            problems.append(f"{word!r} in the page")
    drawings = re.findall(r"<svg.*?</svg>", source, flags=re.S)
    for drawing in drawings:
        root = xml.etree.ElementTree.fromstring(drawing)  # raises where it is not well formed
        width, height = (float(number) for number in root.get("viewBox").split()[2:])
        for element in root.iter():
            for name, most in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                value = element.get(name)
                if value is not None and not -1 <= float(value) <= most + 1:
                    problems.append(f"{element.tag} at {name} = {value}, outside the drawing")
            if any(word in (element.get("d") or "") for word in ("nan", "inf")):
                problems.append("a path that leads nowhere")
    for evaluation in report.get("evaluations", [report] if report["kvq_report"] == "perplexity" else []):
        check_numbers(evaluation, page.rows)
    for problem in dict.fromkeys(problems):
        print(f"{folder}/report.html: {problem}")
    print(f"{len(drawings)} drawings, {len(page.rows)} rows")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
