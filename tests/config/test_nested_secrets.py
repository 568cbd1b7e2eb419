"""Secrets in escapes within escapes: masked by value, however the encoders are nested."""

import html
import json
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from endpoint import endpoint
from hypothesis import given
from hypothesis import strategies as st
from support import asked
from workplace import Workplace

from rollout_kit.api.testing import text_response
from rollout_kit.secrets import EVERY, MASK, OVERLAP, WINDOW, decode, echoes, mask, mask_echo

KEY = "sk-0123456789abcdefghijklmnop"


def by_character(spell: Callable[[int], str]) -> Callable[[str], str]:
    """Encodes each UTF-16 unit, as JSON does."""

    def encode(text: str) -> str:
        raw = text.encode("utf-16-be", "surrogatepass")
        return "".join(spell(int.from_bytes(raw[at : at + 2])) for at in range(0, len(raw), 2))

    return encode


def by_byte(spell: Callable[[int], str]) -> Callable[[str], str]:
    return lambda text: "".join(map(spell, text.encode("utf-8", "surrogatepass")))


ENCODERS: dict[str, Callable[[str], str]] = {
    "json": json.dumps,
    "json as it is": lambda text: json.dumps(text, ensure_ascii=False),
    "json of php": lambda text: json.dumps(text).replace("/", "\\/"),
    "json lower": by_character("\\u{:04x}".format),
    "json upper": by_character("\\u{:04X}".format),
    "html": html.escape,
    "html decimal": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "html hex": lambda text: "".join(f"&#x{ord(one):X};" for one in text),
    "html open": lambda text: "".join(f"&#{ord(one):07}" for one in text),
    "html zeros": lambda text: "".join(f"&#{ord(one):05};" for one in text),
    "url": lambda text: quote(text, safe="", errors="surrogatepass"),
    "form": lambda text: quote_plus(text, errors="surrogatepass"),
    "percent lower": by_byte("%{:02x}".format),
    "percent upper": by_byte("%{:02X}".format),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode("utf-8", "surrogatepass")),
    "bytes": by_byte("\\x{:02x}".format),
}

IN_BASE64: dict[str, Callable[[str], str]] = {
    "base64": lambda text: b64encode(text.encode()).decode(),
    "base64 for urls": lambda text: urlsafe_b64encode(f"a{text}".encode()).decode(),
    "basic": lambda text: f"Basic {b64encode(f'user:{text}'.encode()).decode()} was refused",
}


def nest(text: str, names: list[str]) -> str:
    for name in names:
        text = {**ENCODERS, **IN_BASE64}[name](text)
    return text


def readings(text: str) -> list[str]:
    return [text, *(reading.text for reading in decode(text, EVERY))]


@given(
    st.text(st.characters(exclude_characters="*", exclude_categories=["Cs"]), min_size=8),
    st.lists(st.sampled_from(sorted(ENCODERS)), max_size=3),
)
def test_a_secret_in_nested_escapes_is_masked(secret: str, names: list[str]) -> None:
    text = f"error: {nest(f'no key {secret} here', names)} (401)"
    shown = mask(text, {secret})
    assert MASK in shown and shown.startswith("error: ") and shown.endswith(" (401)")
    assert not [said for said in readings(shown) if secret in said]
    assert echoes(text, frozenset({secret}))
    assert not [said for said in readings(mask_echo(text, frozenset({secret}))) if secret in said]


@given(
    st.text(string.ascii_letters + string.digits + "-_./+=:", min_size=12),
    st.lists(st.sampled_from(sorted(ENCODERS | IN_BASE64)), max_size=3),
)
def test_base64_may_be_among_the_escapes(secret: str, names: list[str]) -> None:
    text = f"error: {nest(f'no key {secret} here', names)} (401)"
    shown = mask(text, {secret})
    assert MASK in shown and shown.startswith("error: ") and shown.endswith(" (401)")
    assert not [said for said in readings(shown) if secret in said]
    assert echoes(text, frozenset({secret}))


@pytest.mark.parametrize("name", sorted(ENCODERS))
@pytest.mark.parametrize("times", [1, 2, 4, 6])
def test_an_escape_may_be_escaped_any_number_of_times(name: str, times: int) -> None:
    text = nest(f'{{"key": "{KEY}"}}', [name] * times if times < 6 else ["json"] * 9)
    shown = mask(text, {KEY})
    assert MASK in shown
    assert not [said for said in readings(shown) if KEY in said]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("100 % of \\u2028 &amp; \\u0041, not more", None),
        (f"a &lt; {KEY} &gt; b", f"a &lt; {MASK} &gt; b"),
        ("\\u0073k-0123456789abcdefghijklmnop.", f"{MASK}."),
        ("%73k-%2530123456789abcdefghijklmno…", f"{MASK}…"),
        ("key=\\\\u0073k-0123456&#55;89abcdefghijklmnop", f"key={MASK}"),
        (f"{quote(KEY)}{KEY}", MASK + MASK),
    ],
)
def test_only_the_secret_is_masked(said: str, shown: str | None) -> None:
    assert mask(said, {KEY}) == (shown or said)


@pytest.mark.parametrize("place", [0, WINDOW - 30, WINDOW - OVERLAP - 30, 2 * WINDOW - OVERLAP])
def test_a_secret_is_found_anywhere_in_a_long_text(place: int) -> None:
    text = "x" * place + "&#32;" + by_character("\\\\u{:04x}".format)(KEY) + " y" * WINDOW
    assert mask(text, {KEY}) == "x" * place + f"&#32;{MASK}" + " y" * WINDOW


def test_a_text_that_decodes_for_ever_is_given_up() -> None:
    text = "%5Cu0025" + "5Cu0025" * 5_000 + "41"
    assert mask(text, {KEY}) == text


def echo(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """As a gateway does that renders the request into a page, and puts that into JSON."""
    spellings = [["json lower"], ["json lower", "json"], ["html hex", "percent lower"], ["bytes"]]
    pages = [f"<p>{html.escape(json.dumps(nest(KEY, names)))}</p>" for names in spellings]
    if "refused" in asked(body):
        return 400, {"error": {"message": f"bad request: {' '.join(pages)}"}}
    return 200, text_response(f"fine, but {' '.join(pages)}")


def test_no_file_holds_an_escaped_echo(tmp_path: Path) -> None:
    with endpoint(echo) as model:
        place = Workplace(tmp_path, model)
        env = (tmp_path / "env.yaml").read_text().replace("sk-planted-0123", KEY)
        (tmp_path / "env.yaml").write_text(env)
        place.tasks(2)
        tasks = tmp_path / "tasks.jsonl"
        tasks.write_text(tasks.read_text().replace("q1", "q1 refused"))
        _, said = place.collect("+record=tapes")
        policy = "+policy_model.responses_api_models.openai_model.placement=process"
        _, later = place.collect("+resume=fresh", policy)
    assert "bad request: " in said and "bad request: " in later, said + later
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "env.yaml"]
    names = {path.name for path in files}
    assert {"failures.jsonl", "calls.jsonl", "policy_model.log"} <= names, names
    texts = {str(path): path.read_text(errors="replace") for path in files} | {
        "said": said,
        "later": later,
    }
    assert not [place for place, text in texts.items() for r in readings(text) if KEY[:12] in r]
    assert "bad request: <p>&quot;****" in texts[str(tmp_path / "out/rollouts.d/failures.jsonl")]
