"""``python -m docs.site.look``: look at the built site in a real browser. Exit status 1 if something is wrong. Needs Chromium.

Every page is loaded at two widths, and must not be wider than the window. The search must find a page by a word, and no page may log an
error or load anything from elsewhere. Pictures of some pages are put into .cache/site-look, for a person to look at.
"""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from docs.site.links import ROOT

SITE = ROOT / ".cache" / "site"
PICTURES = ROOT / ".cache" / "site-look"
WIDTHS = {"wide": 1400, "narrow": 400}
SHOWN = {
    "index.html": 900, "start.html": 1600, "concepts.html": 2400, "promises.html": 1800, "guides/spark-source.html": 2400,
    "guides/operating.html": 2400, "guides/from-java.html": 2400, "guides/deploying.html": 3600, "reference/api.html": 2400,
    "reference/options.html": 1600, "reference/errors.html": 1600, "reference/cli.html": 1600, "reference/settings.html": 1600,
    "bk_core/protocol/index.html": 3600, "docs/wire-protocol.html": 2400,
}  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Loads every page in a frame of each width; then types into the search of the last one. The result is the text of the page.
HARNESS = """<!doctype html><meta charset="utf-8"><title>look</title><body><pre id="result"></pre><script>
const pages = PAGES, widths = WIDTHS, found = []
const frame = document.body.appendChild(document.createElement("iframe"))
const pause = () => fetch("/look-pause", {cache: "no-store"})  // the browser's clock stands still meanwhile, its workers go on
const load = page => new Promise(done => { frame.onload = done; frame.src = "/" + page })
const said = (page, what) => found.push(page + ": " + what)
async function look() {
  frame.height = 900
  for (const width of widths) {
    frame.width = width
    for (const page of pages) {
      await load(page)
      const doc = frame.contentDocument, wide = doc.documentElement.scrollWidth
      if (wide > width + 1) {
        const culprits = [...doc.querySelectorAll(".md-content *")].filter(e => e.getBoundingClientRect().right > width + 1)
        said(page, `is ${wide} wide at ${width}: ${culprits.slice(-3).map(e => e.tagName + " " + e.textContent.slice(0, 60)).join(" | ")}`)
      }
      for (const entry of frame.contentWindow.performance.getEntriesByType("resource"))
        if (!entry.name.startsWith(location.origin)) said(page, "loads " + entry.name)
    }
  }
  await load("index.html")
  const query = frame.contentDocument.querySelector("[data-md-component=search-query]")
  query.focus()
  query.value = "fencing"
  query.dispatchEvent(new Event("input", {bubbles: true}))
  query.dispatchEvent(new Event("keyup", {bubbles: true}))
  let results = []
  for (let tries = 0; tries < 100 && !results.length; tries++) {
    await pause()
    results = [...frame.contentDocument.querySelectorAll(".md-search-result__link")].map(link => link.getAttribute("href"))
  }
  if (!results.length) said("index.html", "its search finds nothing for fencing")
  document.getElementById("result").textContent = JSON.stringify({found, results: results.slice(0, 3)})
  document.title = "done"
}
look().catch(error => { document.getElementById("result").textContent = JSON.stringify({found: ["look: " + error], results: []}) })
</script>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/look-pause":
            time.sleep(0.1)
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> int:
    browser = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    if browser is None:
        print(f"no browser found ({', '.join(BROWSERS)}); Debian: apt-get install chromium", file=sys.stderr)
        return 1
    if not (SITE / "index.html").exists():
        print(f"there is no site in {SITE}: make site", file=sys.stderr)
        return 1
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html")
    harness = SITE / "look.html"
    try:
        harness.write_text(HARNESS.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(list(WIDTHS.values()))))
        dom = _chromium(browser, f"{address}/look.html", "--virtual-time-budget=600000", "--dump-dom")
        told = re.search(r'<pre id="result">(.+?)</pre>', dom, re.S)
        result = json.loads(html.unescape(told[1])) if told else {"found": ["look: the browser gave no result"], "results": []}
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir(parents=True)
        for page, height in SHOWN.items():
            for name, width in WIDTHS.items():
                to = PICTURES / f"{page.removesuffix('.html').replace('/', '-')}-{name}.png"
                _chromium(browser, f"{address}/{page}", "--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={to}")
    finally:
        harness.unlink(missing_ok=True)
        server.shutdown()
    print("\n".join(result["found"]) or f"{len(pages)} pages at {len(WIDTHS)} widths: nothing wrong. Pictures: {PICTURES}")
    print(f"fencing is found in {', '.join(result['results'])}")
    return 1 if result["found"] else 0


def _chromium(browser: str, address: str, *options: str) -> str:
    with tempfile.TemporaryDirectory(prefix="bk-look-") as profile:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *options, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
