"""The page at /: in a real browser, with the real server behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from browser import CHROMIUM, Browser, Tab, running_browser
from door import door, free_port
from live_server import Guarded, RunningServer

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

_HOSTILE = """<img src=x onerror="window.hacked = 1"> <script>window.hacked = 1</script>

# <svg onload="window.hacked = 1">

- [link](javascript:window.hacked=1) and [data](data:text/html,<script>window.hacked=1</script>) and <javascript:window.hacked=1>

| a <b>x</b> | b |
| --- | --- |
| <iframe srcdoc="x"></iframe> | `<script>` |

```<img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked = 1</script>
```
> <style>* { display: none }</style> **bold <i onclick=window.hacked=1>x</i>**"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """The page, as somebody sees it who has never been here."""
    with browser.tab() as tab:
        tab.resize(1200, 800)
        tab.open(server.url + "/")
        tab.wait_for("document.querySelector('#model').textContent")
        yield tab
        assert not tab.complaints
        assert all(address.startswith(server.url) for address in tab.requested), tab.requested


def _set(tab: Tab, **settings: object) -> None:
    """Settings of an earlier visit."""
    tab.run(f"localStorage.setItem('octavo.settings', {json.dumps(json.dumps(settings))})")
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('#model')?.textContent")


def _answer_ended(tab: Tab) -> None:
    tab.wait_for("!document.querySelector('#send').classList.contains('stops')")


@in_browser
def test_a_message_is_answered_as_it_is_generated_and_the_conversation_is_kept(tab: Tab) -> None:
    _set(tab, temperature=0, max_tokens=48)
    tab.type("Why is the sky blue?")
    tab.press("Enter")
    begun = tab.wait_for("document.querySelector('.assistant.running .text')?.innerText")
    _answer_ended(tab)
    answer = tab.text(".assistant .text")
    assert answer.startswith(begun.strip())
    assert len(answer) > len(begun.strip())
    assert "48 tokens" in (numbers := tab.text(".numbers"))
    assert "tokens/s" in numbers
    assert "first after" in numbers
    assert tab.text(".conversation") == "Why is the sky blue?"

    tab.click("#tint")
    assert tab.run("document.querySelectorAll('.token').length") == 48
    tab.run("document.querySelector('.tokens').focus()")
    tab.press("ArrowRight")
    assert tab.text("#token-card").count("%") == 5
    tab.click("#tint")

    tab.click(".again")
    tab.wait_for("document.querySelector('.assistant.running')")
    _answer_ended(tab)
    assert tab.text(".assistant .text") == answer, "at temperature 0 the model says it again"

    tab.press("k", control=True)
    assert tab.run("document.querySelectorAll('.message').length") == 0
    of_another_tab = json.dumps({"id": "1", "title": "Of another tab", "touched": 1, "messages": [{"role": "user", "content": "Hi"}]})
    tab.run(f"localStorage.setItem('octavo.conversation.1', {json.dumps(of_another_tab)})")
    tab.send("Page.reload")
    tab.wait_for("document.querySelectorAll('.conversation').length === 2")
    tab.click(".conversation")
    assert tab.text(".assistant .text") == answer


@in_browser
def test_escape_stops_an_answer_in_the_page_and_in_the_engine(tab: Tab, server: RunningServer) -> None:
    tab.type("Write a very long story about a lighthouse, with many chapters.")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.assistant .text')?.innerText.length > 20")
    tab.press("Escape")
    tab.wait_for("document.querySelector('.numbers').innerText.includes('stopped')", 2)
    server.wait_until_idle(5)
    assert tab.run("document.querySelector('#send').getAttribute('aria-label')") == "Send"


@in_browser
def test_a_message_can_be_edited_and_is_answered_anew(tab: Tab) -> None:
    _set(tab, temperature=0, max_tokens=4, logprobs=False)
    tab.type("Say one")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.numbers')?.innerText")
    _answer_ended(tab)
    tab.click(".edit")
    tab.run("document.querySelector('.editor').select()")
    tab.type("Say two")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.user').innerText.includes('two')")
    _answer_ended(tab)
    assert tab.run("document.querySelectorAll('.message').length") == 2


@in_browser
def test_what_a_model_writes_is_text_and_never_markup(tab: Tab) -> None:
    said = [{"role": "user", "content": _HOSTILE}, {"role": "assistant", "content": _HOSTILE, "reasoning": _HOSTILE}]
    kept = json.dumps({"id": "1", "title": _HOSTILE, "touched": 1, "messages": said})
    tab.run(f"localStorage.setItem('octavo.conversation.1', {json.dumps(kept)})")
    tab.send("Page.reload")
    tab.wait_for("document.querySelector('.conversation')")
    tab.click(".conversation")
    assert tab.run("document.querySelectorAll('.message :is(img, script, style, iframe, i, b, a)').length") == 0
    assert tab.run("document.querySelectorAll('.message svg:not(.actions svg, figcaption svg)').length") == 0
    assert tab.run("window.hacked") is None
    assert '<img src=x onerror="window.hacked = 1">' in tab.text(".assistant > .body > .text")
    assert tab.run("document.querySelector('details.thinking').open") is False


@in_browser
def test_markdown_is_rendered(tab: Tab) -> None:
    text = "# Head\n\nA **bold** and *fine* `code_x` in snake_case_words.\n\n1. one\n2. two\n   - deep\n\n```py\nx < 1\n```\n\n> said\n\n[here](https://example.org)"
    made = tab.run(f"""import('./web/markdown.js').then(({{ MarkdownView }}) => {{
        const element = document.createElement('div');
        const view = new MarkdownView(element);
        for (let end = 0; end <= {len(text)}; end++) view.update({json.dumps(text)}.slice(0, end));
        return element.innerHTML;
    }})""")
    for part in (
        "<h2>Head</h2>",
        "<p>A <strong>bold</strong> and <em>fine</em> <code>code_x</code> in snake_case_words.</p>",
        "<ol><li>one</li><li>two<ul><li>deep</li></ul></li></ol>",
        '<pre tabindex="0"><code>x &lt; 1</code></pre>',
        "<blockquote><p>said</p></blockquote>",
        '<a href="https://example.org"',
    ):
        assert part in made, made


@in_browser
def test_the_page_is_dark_where_the_system_is_and_wherever_somebody_wants_it(tab: Tab) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.prefer("light")
    light = tab.run(background)
    tab.prefer("dark")
    dark = tab.wait_for(f"{background} !== '{light}' && {background}")
    tab.click("#theme")
    assert "light" in tab.text("#theme")
    assert tab.run(background) == light
    tab.prefer("light")
    tab.click("#theme")
    assert "dark" in tab.text("#theme")
    assert tab.run(background) == dark


@in_browser
def test_on_a_phone_nothing_is_wider_than_the_screen(tab: Tab) -> None:
    tab.resize(360, 700, mobile=True)
    for view in ("#tab-status", "#tab-chat"):
        tab.click(view)
        if view == "#tab-status":
            tab.wait_for("document.querySelector('.tiles dd')")
        assert tab.run("document.documentElement.scrollWidth") == 360
        assert tab.run("[...document.querySelectorAll('button')].every((one) => one.textContent.trim() || one.ariaLabel)"), "all have names"
    tab.wait_for("document.querySelector('#sidebar').getBoundingClientRect().right <= 0")
    tab.click("#menu")
    tab.wait_for("document.querySelector('#sidebar').getBoundingClientRect().left === 0")


@in_browser
def test_the_status_shows_the_pool_of_blocks_and_every_request(tab: Tab) -> None:
    tab.click("#tab-status")
    tab.wait_for("document.querySelector('.pool').ariaLabel?.includes('KV blocks')")
    tab.run("""fetch('v1/completions', { method: 'POST', headers: { 'content-type': 'application/json', 'x-request-id': 'looked-at' },
        body: JSON.stringify({ prompt: 'Once', max_tokens: 600, ignore_eos: true }) }) && true""")
    row = tab.wait_for("[...document.querySelectorAll('.status tbody tr')].map((one) => one.innerText).find((one) => one.includes('600'))")
    assert "decode" in row or "prefill" in row


@in_browser
def test_a_server_that_goes_away_is_told_in_words_and_its_return_is_noticed(browser: Browser, server: RunningServer) -> None:
    port = free_port()
    with browser.tab() as tab:
        with door(port, server.url):
            tab.open(f"http://127.0.0.1:{port}/")
            tab.wait_for("document.querySelector('#model').textContent")
            tab.type("Write a very long story about a lighthouse, with many chapters.")
            tab.press("Enter")
            tab.wait_for("document.querySelector('.assistant .text')?.innerText.length > 20")
        assert "broke off" in tab.wait_for("document.querySelector('.failure')?.innerText")
        tab.click("#tab-status")
        assert "does not answer" in tab.wait_for("document.querySelector('.status .notice').innerText")
        with door(port, server.url):
            tab.wait_for("document.querySelector('.status .notice').hidden")
            assert "ready" in tab.text(".tiles")


@in_browser
def test_where_a_key_is_asked_for_the_page_asks_for_it_in_words(browser: Browser, guarded: Guarded) -> None:
    with browser.tab() as tab:
        tab.open(guarded.url.replace("0.0.0.0", "127.0.0.1") + "/")
        tab.wait_for("document.querySelector('#key-dialog').open")
        tab.type(guarded.keys["front"])
        tab.press("Enter")
        tab.wait_for("document.querySelector('#model').textContent")
        assert tab.run("localStorage.getItem('octavo.key')") is None, "it was not to be remembered"
        tab.click("#tab-status")
        tab.wait_for("document.querySelector('.status .notice').innerText.includes('admin')")


def test_the_page_may_load_nothing_from_elsewhere_and_no_key_is_asked_for_its_files(guarded: Guarded) -> None:
    page = httpx.get(guarded.url + "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in page.text.replace("http-equiv", ""), "no address of another server"
    assert httpx.get(guarded.url + "/web/app.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_a_browser_that_has_the_page_is_told_so_without_sending_it_again(http: httpx.Client) -> None:
    first = http.get("/")
    again = http.get("/", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert http.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    head = http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(first.content))
