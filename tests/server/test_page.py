"""The web page in a real browser, on a real server."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Server

pytestmark = pytest.mark.browser
QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "chromium is not installed (apt install chromium)"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """The page in an empty profile; errors and refused content in it fail the test."""
    context = browser.new_context()
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    page.goto(server.url)
    until(page, "document.querySelector('#model').value === 'smollm2'")
    yield page
    context.close()
    assert problems == []


def until(page: Any, condition: str) -> None:
    """Wait for it; playwright's own way needs `eval`, which the page's policy forbids."""
    limit = time.monotonic() + 60
    while not page.evaluate(condition):
        assert time.monotonic() < limit, condition
        page.wait_for_timeout(20)


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def answered(page: Any) -> str:
    """The last answer, when it has ended."""
    page.wait_for_selector("article.assistant:last-child button:text('Regenerate')", timeout=60_000)
    return str(page.inner_text("article.assistant:last-child .body"))


def choose(page: Any, **values: object) -> None:
    """Change settings in the dialog."""
    page.click("#settings")
    for name, value in values.items():
        page.fill(f"#fields [name={name}]", str(value))
    page.click("#fields button[value=save]")


def stored(page: Any) -> list[dict[str, Any]]:
    """The conversations in the browser's storage."""
    entries = page.evaluate("Object.entries(localStorage)")
    return [json.loads(value) for key, value in entries if key.startswith("edgert.chat.")]


def test_an_answer_streams_and_is_the_models_own(page: Any, server: Server) -> None:
    choose(page, temperature=0, max_tokens=40)
    ask(page, QUESTION)
    text = answered(page)
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
    alone = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    assert stored(page)[0]["messages"][1]["content"] == alone
    assert "Paris" in text
    assert re.search(r"\d+ tokens, [\d.]+ tokens/s", page.inner_text("article.assistant .figures"))


def test_stop_keeps_what_has_been_said(page: Any, server: Server) -> None:
    choose(page, max_tokens=4000)
    ask(page, "Tell me a very long story about the sea.")
    until(page, "document.querySelector('article.assistant .body').innerText.length > 20")
    assert page.inner_text("#send") == "Stop"
    page.click("#send")
    assert len(answered(page)) > 20
    assert "stopped" in page.inner_text("article.assistant .figures")
    assert page.inner_text("#send") == "Send"
    ask(page, "Go on for a long time.")
    until(page, "document.querySelectorAll('article.assistant .body')[1]?.innerText.length > 5")
    page.keyboard.press("Escape")
    answered(page)
    assert len(stored(page)[0]["messages"]) == 4


def test_regenerate_and_edit(page: Any) -> None:
    choose(page, temperature=0, max_tokens=12)
    ask(page, "Say hello.")
    first = answered(page)
    page.click("article.assistant button:text('Regenerate')")
    page.wait_for_selector("#send.stops", state="detached")
    assert answered(page) == first
    page.press("#text", "ArrowUp")  # edits the last message
    page.fill("article.user textarea", "Say goodbye.")
    page.press("article.user textarea", "Enter")
    page.wait_for_selector("article.user:has-text('Say goodbye.')")
    assert answered(page) != first
    assert page.locator("article").count() == 2
    page.click("article.user button:text('Edit')")
    page.fill("article.user textarea", "not this")
    page.press("article.user textarea", "Escape")
    assert page.inner_text("article.user .body") == "Say goodbye."


def test_conversations_stay_and_can_be_exported_and_deleted(page: Any, tmp_path: Path) -> None:
    choose(page, temperature=0, max_tokens=8, system="You are brief.")
    for text in ("First question", "Second question"):
        page.keyboard.press("Alt+n")
        ask(page, text)
        answered(page)
    page.reload()
    page.wait_for_selector("article.user:has-text('Second question')")
    assert page.locator("#chats .open").all_inner_texts() == ["Second question", "First question"]
    page.click("#chats .open:text('First question')")
    page.wait_for_selector("article.user:has-text('First question')")
    for button, name in (("#export", "chat.md"), ("#export-all", "chats.json")):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    assert (tmp_path / "chat.md").read_text().startswith("## You\n\nFirst question\n\n## Model\n\n")
    assert [chat["title"] for chat in json.loads((tmp_path / "chats.json").read_text())] == [
        "Second question", "First question"]  # fmt: skip
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#chats li.now .drop")
    page.wait_for_selector("article", state="detached")
    assert [chat["title"] for chat in stored(page)] == ["Second question"]


def test_markup_of_a_model_stays_text(page: Any) -> None:
    """What a model could say: markdown becomes elements, markup and scripts become text."""
    source = (
        "# Title\n\nSome **bold**, *slanted* `co<de>` and <img src=x onerror=alert(1)>\n<script>alert(1)</script>\n\n"
        "- one\n  - inner\n- two\n\n3. three\n\n```py\nif a < b:\n    print('**no**')\n```\n\n| a | b |\n|---|--:|\n"
        "| 1 | [x](javascript:alert(1)) |\n\n> quoted\n\n[site](https://example.org/a_b) https://example.org/x. "
        "snake_case_name 2 * 3 * 4\n\n```\nnot closed"
    )
    page.evaluate("""async (source) => {
        const { render } = await import("/markdown.js");
        const node = document.createElement("div");
        for (let i = 0; i <= source.length; i++) render(node, source.slice(0, i));  // as it streams
        window.made = node;
    }""", source)  # fmt: skip
    html = page.evaluate("made.innerHTML.replace(/<button.*?<\\/button>/g, '')")
    assert html == (
        "<h1>Title</h1><p>Some <strong>bold</strong>, <em>slanted</em> <code>co&lt;de&gt;</code> and "
        "&lt;img src=x onerror=alert(1)&gt;\n&lt;script&gt;alert(1)&lt;/script&gt;</p>"
        "<ul><li>one<ul><li>inner</li></ul></li><li>two</li></ul><ol start=\"3\"><li>three</li></ol>"
        "<pre data-language=\"py\"><code>if a &lt; b:\n    print('**no**')</code></pre>"
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>"
        "<td>[x](javascript:alert(1))</td></tr></tbody></table><blockquote><p>quoted</p></blockquote>"
        "<p><a href=\"https://example.org/a_b\" target=\"_blank\" rel=\"noopener noreferrer\">site</a> "
        "<a href=\"https://example.org/x\" target=\"_blank\" rel=\"noopener noreferrer\">https://example.org/x</a>. "
        "snake_case_name 2 * 3 * 4</p><pre><code>not closed</code></pre>"
    )  # fmt: skip


def test_errors_are_shown_and_can_be_tried_again(page: Any) -> None:
    choose(page, max_tokens=8, temperature=0)
    ask(page, "word " * 20_000)
    page.wait_for_selector(".failed", timeout=30_000)
    assert "tokens" in page.inner_text(".failed span")
    assert page.locator("article.assistant").count() == 0
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click(".failed button")
    page.wait_for_selector(".failed:has-text('cannot be reached')")
    page.unroute("**/v1/chat/completions")
    page.click("article.user button:text('Edit')")
    page.fill("article.user textarea", "Hello")
    page.press("article.user textarea", "Enter")
    assert answered(page)
    assert page.locator(".failed").count() == 0


def test_settings_are_checked_kept_and_colours_chosen(page: Any) -> None:
    choose(page, temperature=-1)
    assert page.locator("#options").is_visible()  # the browser says what is wrong
    page.fill("#fields [name=temperature]", "0.5")
    page.select_option("#fields [name=theme]", "dark")
    page.press("#fields [name=temperature]", "Enter")
    page.wait_for_selector("#options", state="hidden")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
    page.click("#settings")
    assert page.input_value("#fields [name=temperature]") == "0.5"


def test_a_phone_has_everything_in_reach(browser: Any, server: Server) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.url)
    assert not page.locator("#new").is_visible()
    page.click("#menu")
    assert page.locator("#new").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#new").is_visible()
    for name in ("#menu", "#model", "#settings", "#text", "#send"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    context.close()
