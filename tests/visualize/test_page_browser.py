"""The report in Chromium: what people do with a mouse, with keys, and with a small window; and that it asks for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fxbucket.explain import Explanation
from fxbucket.passes import Program
from fxbucket.visualize import save_page
from fxbucket.visualize.labels import TIMES

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="needs selenium")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion",
)  # fmt: skip


class Browser:
    """Chromium with one page, and what a person does there."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def go(self, choice: str = "", width: int = 1300, height: int = 900) -> None:
        """Open the page afresh, with a choice in its address."""
        self.driver.set_window_size(width, height)
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#{choice}")
        WebDriverWait(self.driver, 20).until(lambda _: self.run("return document.documentElement.dataset.ready") == "yes")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return [one for one in self.driver.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]

    def choose(self, where: str, name: str) -> None:
        """Click on the item of a list or strip by its name."""
        (item,) = (one for one in self.all(f"#{where} [role=radio]") if one.text.splitlines()[0] == name)
        item.click()

    def chosen(self, where: str) -> str:
        name: str = self.find(f"#{where} [aria-checked=true]").text.splitlines()[0]
        return name

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    @property
    def focused(self) -> Any:
        return self.driver.switch_to.active_element

    @property
    def drawn(self) -> str:
        text: str = self.run("return [...document.querySelectorAll('#canvas text')].map(t => t.textContent).join('\\n')")
        return text

    @property
    def view_box(self) -> list[float]:
        return [float(number) for number in self.find("#canvas svg").get_dom_attribute("viewBox").split()]

    def logs(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    # What the browser shows when it starts is no page of ours.
    driver.get("about:blank")
    driver.get_log("performance")
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(explained: Explanation, concrete_deep: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    save_page(explained, folder / "halves.html")
    save_page(concrete_deep, folder / "deep.html")
    return folder


@pytest.fixture
def browser(driver: Any, pages: Path) -> Iterator[Browser]:
    """The page of three pieces; after each test there must be no error, and no request but for the file."""
    made = Browser(driver, (pages / "halves.html").as_uri())
    made.go()
    yield made
    assert made.logs() == []
    assert {url.partition("#")[0] for url in made.requests()} <= {made.url, "about:blank"}


@pytest.fixture
def deep_browser(driver: Any, pages: Path) -> Iterator[Browser]:
    made = Browser(driver, (pages / "deep.html").as_uri())
    made.go()
    yield made
    assert made.logs() == []
    assert {url.partition("#")[0] for url in made.requests()} <= {made.url, "about:blank"}


def test_a_step_a_piece_and_a_bucket_are_chosen(browser: Browser):
    assert browser.chosen("buckets") == "all sizes"
    assert "f32[rows, 4]" in browser.drawn
    browser.choose("buckets", "rows=8")
    assert browser.chosen("steps") == "verify"
    assert "f32[8, 4]" in browser.drawn
    assert "rows" not in browser.drawn.replace("rows=8", "")
    browser.choose("steps", "split")
    assert "f32[rows, 4]" in browser.drawn
    browser.choose("steps", "concretize")
    browser.choose("pieces", "piece_1")
    assert "sigmoid" in browser.drawn
    assert "linear" not in browser.drawn
    browser.find("#tab-code").click()
    code = browser.find("#panel-code").text
    assert "piece_1 (boundary, runs as it is)" in code
    assert "piece_0" not in code
    assert "bucket=rows%3D8" in browser.driver.current_url


def test_the_address_holds_what_is_chosen(browser: Browser):
    browser.go("bucket=rows%3D4&step=split&piece=piece_0&view=code")
    assert browser.chosen("buckets") == "rows=4"
    assert browser.chosen("steps") == "split"
    assert browser.chosen("pieces") == "piece_0"
    assert browser.find("#panel-code").is_displayed()
    browser.go("graph=9&bucket=nothing&piece=piece_99&view=nowhere")
    assert browser.chosen("pieces") == "whole program"
    assert browser.find("#panel-drawing").is_displayed()


def test_a_refused_bucket_says_why(browser: Browser):
    browser.choose("buckets", "rows=7")
    assert "rows % 2" in browser.find("#bucket-note").text
    browser.choose("buckets", "rows=4")
    assert not browser.find("#bucket-note").is_displayed()


def test_each_view_shows_its_own(browser: Browser):
    browser.choose("buckets", "rows=8")
    shown = {
        "python": "def dispatch(*args):",
        "compiled": "Artifacts for rows=8",
        "axes": "x.shape[0]",
        "buckets": "refused",
        "calls": "Recorded calls by bucket",
    }
    for view, text in shown.items():
        browser.find(f"#tab-{view}").click()
        (panel,) = browser.all("[role=tabpanel]")
        assert panel.get_attribute("id") == f"panel-{view}"
        assert text in panel.text
    browser.choose("steps", "concretize")
    browser.find("#tab-changes").click()
    assert "shape (rows, 4) → (8, 4)" in browser.find("#panel-changes").text
    browser.find("#tab-compiled").click()
    browser.all("#panel-compiled .open")[1].click()
    assert browser.chosen("pieces") == "piece_1"
    assert "runs as it is" in browser.find("#panel-compiled").text


def test_a_search_marks_what_it_finds(browser: Browser):
    browser.find("#search").send_keys("linear")
    hits = browser.all("#canvas .hit")
    assert hits
    assert all("linear" in browser.run("return arguments[0].words", hit) for hit in hits)
    assert browser.find("#hits").text.startswith(f"1 of {len(hits)}: ")
    assert browser.find("#detail").text
    browser.press(Keys.ENTER)
    assert browser.find("#hits").text.startswith(f"{2 if len(hits) > 1 else 1} of {len(hits)}: ")
    browser.find("#search").clear()
    browser.find("#search").send_keys("[rows, 4] up")
    assert browser.all("#canvas .hit")
    browser.find("#search").clear()
    browser.find("#search").send_keys("nowhere")
    assert browser.find("#hits").text == "Not found in this view."
    browser.press(Keys.ESCAPE)
    assert browser.find("#hits").text == ""
    browser.find("#tab-code").click()
    browser.find("#search").send_keys("sigmoid")
    assert len(browser.all("#panel-code .line.hit")) >= 2
    assert len(browser.all("#panel-code .line.chosen")) == 1


def test_a_drawing_is_zoomed_and_moved(browser: Browser):
    start = browser.view_box
    browser.find("#zoom-in").click()
    near = browser.view_box
    assert near[2] < start[2]
    assert near[0] + near[2] / 2 == pytest.approx(start[0] + start[2] / 2, abs=1)
    browser.find("#zoom-out").click()
    assert browser.view_box == pytest.approx(start, abs=0.5)
    browser.find("#zoom-one").click()
    assert browser.find("#zoom-level").text == "100 %"
    canvas = browser.find("#canvas")
    before = browser.view_box
    actions = webdriver.ActionChains(browser.driver)
    actions.move_to_element_with_offset(canvas, -200, 150).click_and_hold().move_by_offset(40, 30).release().perform()
    moved = browser.view_box
    assert (before[0] - moved[0], before[1] - moved[1]) == pytest.approx((40, 30), abs=2)
    browser.find("#zoom-all").click()
    outer = canvas.rect
    inner = browser.run("return document.querySelector('#canvas svg > g').getBoundingClientRect().toJSON()")
    assert inner["top"] >= outer["y"] - 2
    assert inner["bottom"] <= outer["y"] + outer["height"] + 2


def test_a_click_says_all_about_a_node_and_opens_a_piece(browser: Browser):
    webdriver.ActionChains(browser.driver).move_to_element(
        browser.find('#canvas [data-key="piece_0.linear"]')
    ).click().perform()
    detail = browser.find("#detail").text
    assert "torch.nn.functional.linear" in detail
    assert "in up (Linear)" in detail
    assert "conftest.py:" in detail
    assert browser.find("#detail a").get_attribute("href").startswith("file:///")
    title = next(one for one in browser.all("#canvas .cluster-text text") if one.text == "piece_0")
    webdriver.ActionChains(browser.driver).move_to_element(title).click().perform()
    (button,) = (one for one in browser.all("#detail button") if one.text == "Open piece_0")
    button.click()
    assert browser.chosen("pieces") == "piece_0"


def test_the_theme_follows_the_system_and_the_switch(browser: Browser):
    background = "return getComputedStyle(document.getElementById('canvas')).backgroundColor"
    assert browser.run(background) == "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    dark = browser.run(background)
    fill = "return getComputedStyle(document.querySelector('#canvas .node.op path')).fill"
    dark_fill = browser.run(fill)
    assert dark == "rgb(13, 17, 23)"
    assert browser.find("#theme").get_attribute("aria-checked") == "true"
    browser.find("#theme").click()
    assert browser.find("#theme").get_attribute("aria-checked") == "false"
    assert browser.run(background) == "rgb(255, 255, 255)"
    assert browser.run(fill) != dark_fill
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.press("t")
    assert browser.run(background) == dark


def test_keys_alone_reach_everything(browser: Browser):
    browser.find("body").send_keys(Keys.TAB)
    assert browser.focused.text == "Skip to the chosen step"
    browser.press(Keys.TAB, Keys.TAB, Keys.TAB)
    assert browser.focused.text.splitlines()[0] == "all sizes"
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.chosen("buckets") == browser.focused.text.splitlines()[0] == "rows=8"
    browser.press(Keys.TAB)
    assert browser.focused.text.splitlines()[0] == "whole program"
    browser.press(Keys.END)
    assert browser.chosen("pieces") == "piece_2"
    browser.press(Keys.HOME, Keys.TAB)
    browser.press(Keys.ARROW_LEFT)
    assert browser.chosen("steps") == browser.focused.text.splitlines()[0] == "concretize"
    browser.press(Keys.TAB, Keys.ARROW_RIGHT)
    assert browser.focused.get_attribute("id") == "tab-code"
    assert browser.find("#panel-code").is_displayed()
    browser.press("/")
    assert browser.focused.get_attribute("id") == "search"
    browser.press("relu", Keys.ENTER)
    assert "relu" in browser.find("#hits").text
    browser.run("document.activeElement.blur()")
    browser.find("body").send_keys("g")
    assert browser.find("#panel-drawing").is_displayed()
    browser.run("document.getElementById('canvas').focus()")
    start = browser.view_box
    browser.press("+", Keys.ARROW_DOWN)
    assert browser.view_box[2] < start[2]
    browser.press("?")
    assert browser.find("#help").is_displayed()
    browser.press(Keys.ESCAPE)
    assert not browser.find("#help").is_displayed()


def test_one_stop_of_the_tab_key_a_list(browser: Browser):
    for where in ("buckets", "pieces", "steps", "views"):
        stops = browser.run(
            f"return [...document.querySelectorAll('#{where} > *')].filter(item => item.tabIndex === 0).length"
        )
        assert stops == 1, where


@pytest.mark.parametrize(("width", "height"), [(1300, 900), (1000, 700), (520, 900)])
@pytest.mark.parametrize("view", ["drawing", "code", "buckets", "calls"])
def test_nothing_lies_over_anything(browser: Browser, width: int, height: int, view: str):
    browser.go(f"bucket=rows%3D8&view={view}", width, height)
    found = browser.run(
        """
        const shown = [...document.querySelectorAll('header > *, nav .list, .pipeline, .bar > *, .panels, footer')]
          .map(e => [e.id || e.className || e.tagName, e.getBoundingClientRect()]).filter(([, r]) => r.width && r.height);
        const over = [];
        shown.forEach(([name, a], i) => shown.slice(i + 1).forEach(([other, b]) => {
          if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
              && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) over.push([name, other]);
        }));
        return [over, document.documentElement.scrollWidth - document.documentElement.clientWidth];
        """
    )
    assert found == [[], 0]


def test_a_deep_model_is_folded_and_found_through(deep_browser: Browser):
    browser = deep_browser
    assert f"{TIMES} 31" in browser.drawn
    browser.find("#search").send_keys("layers.17")
    assert browser.find("#hits").text == "1 of 1: 31 times one after the other; drawn once"
    browser.choose("pieces", "piece_34")
    assert browser.find("#drawn-for").text == "drawn for piece_2, equal to piece_34 up to names"
    browser.find("#tab-code").click()
    assert browser.find("#panel-code").text.split("\n")[0].startswith("piece_34 (compiled)")
