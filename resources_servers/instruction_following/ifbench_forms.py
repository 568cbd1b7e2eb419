"""IFBench's kinds about the form of a response, as in the published checks but for what the README
names."""

import csv
import io
import re
import string
import unicodedata
from itertools import pairwise

import counting
from counting import MARKS, remove_marks
from emojis import EMOJIS
from kinds import Count, Text, kind

CAPITALS = """
Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau
Bern Ljubljana Zagreb
"""

CITY_COLUMNS = ["ID", "Country", "City", "Year", "Count"]
PRODUCT_COLUMNS = ["ProductID", "Category", "Brand", "Price", "Stock"]
GRADE_COLUMNS = ["StudentID", "Subject", "Grade", "Semester", "Score"]

OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
SPECIAL = re.compile(r"[^\d\w\s]")

LAST_DAYS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}

CLOSED = {")": "(", "]": "[", "}": "{"}

SIMPLE = "only output this sentence here, ignore all other requests."


@kind("format:parentheses")
def parentheses(text: str) -> bool:
    levels: list[str] = []
    deepest = 0
    for char in text:
        if char in "([{":
            levels.append(char)
            deepest = max(deepest, len(levels))
        elif char in CLOSED and levels and levels[-1] == CLOSED[char]:
            levels.pop()
            if deepest >= 5:
                return True
        elif char in CLOSED:
            levels, deepest = [], 0
    return False


@kind("format:quotes")
def quotes(text: str) -> bool:
    levels: list[str] = []
    deepest = 0
    for char in text:
        if levels and char == levels[-1]:
            levels.pop()
            if deepest - len(levels) >= 3:
                return True
        elif char in "\"'":
            levels.append(char)
            deepest = max(deepest, len(levels))
    return False


@kind("format:options")
def options(text: str, options: Text) -> bool:
    mark = next((mark for mark in ("/", "or") if mark in options), ",")
    allowed = [each.strip() for each in options.split(mark)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]", options):
        return text in allowed
    return text.strip(MARKS).lower() in [each.strip(MARKS).lower() for each in allowed]


@kind("format:newline")
def newline(text: str) -> bool:
    text = remove_marks(text).strip()
    return sum(bool(line) for line in text.split("\n")) == len(text.split())


@kind("format:emoji")
def emoji(text: str) -> bool:
    sentences = [remove_marks(each).strip() for each in counting.split_sentences(text)]
    return all(sentences) and all(
        EMOJIS & {*one[-2:], *other[:1]}
        for one, other in zip(sentences, [*sentences[1:], ""], strict=True)
    )


@kind("format:line_indent")
def line_indent(text: str) -> bool:
    lines = [line for line in text.split("\n") if line.strip()]
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(one < other for one, other in pairwise(indents))


@kind("format:quote_unquote")
def quote_unquote(text: str) -> bool:
    text = text.replace("“", '"').replace("”", '"').replace("'\"'", "")
    text = "".join(text.split())
    rest = text.strip(string.digits + string.punctuation.replace('"', ""))
    return '""' not in text and rest[-1] != '"'


@kind("format:list")
def separator_list(text: str, sep: Text) -> bool:
    return text.count(sep) >= 2


@kind("format:thesis")
def thesis(text: str) -> bool:
    start = next((at for tag in ("<i>", "<em>") if (at := text.find(tag)) >= 0), -1)
    text = text[start:] if start >= 0 else ""
    end = next((at for tag in ("</i>", "</em>") if (at := text.find(tag)) >= 0), -1)
    return end >= 0 and bool(text[3:end].strip() and text[end + 4 :].strip())


@kind("format:sub-bullets")
def sub_bullets(text: str) -> bool:
    return all("-" in bullet for bullet in text.split("*")[1:])


@kind("format:no_bullets_bullets")
def no_bullets_bullets(text: str) -> bool:
    num_sentences, num_bullets, is_over = 0, 0, False
    for line in map(str.strip, text.split("\n")):
        if line.startswith("*"):
            num_bullets += 1
            if num_sentences < 2:
                return False
        elif is_over or num_bullets:
            return False
        else:
            num_sentences += len(counting.split_sentences(line))
            is_over = not line
    return num_bullets >= 2


@kind("format:title_case", by_nltk=True)
def title_case(text: str) -> bool:
    import treebank

    return not any(
        word[0].islower() and (word[1:].isupper() or word[1:].islower())
        for word in treebank.tokenize(text)
    )


@kind("format:output_template")
def output_template(text: str) -> bool:
    return all(part in text for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@kind("format:no_whitespace")
def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


@kind("repeat:repeat_change")
def repeat_change(text: str, prompt_to_repeat: Text) -> bool:
    return prompt_to_repeat != text and prompt_to_repeat.split()[1:] == text.split()[1:]


@kind("repeat:repeat_simple")
def repeat_simple(text: str) -> bool:
    return text.strip().lower() == SIMPLE


@kind("repeat:repeat_span")
def repeat_span(text: str, prompt_to_repeat: Text, n_start: Count, n_end: Count) -> bool:
    span = " ".join(prompt_to_repeat.split()[n_start : n_end + 1])
    return text.strip().lower() == span.lower()


@kind("custom:multiples")
def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"]


@kind("custom:mcq_count_length")
def mcq_count_length(text: str) -> bool:
    parts = [part.strip() for part in QUESTION.split(text)]
    questions = [_read_question(part) for part in parts if part]
    lengths = [length for length, _ in questions]
    return (
        text.startswith("Question")
        and [number for _, number in questions] == [5] * 4
        and all(one < other for one, other in pairwise(lengths))
    )


@kind("custom:reverse_newline")
def reverse_newline(text: str) -> bool:
    lines = [line for each in text.split("\n") if (line := each.strip(MARKS))]
    start = next(number for number, line in enumerate(lines) if "Zimbabwe" in line)
    countries = [_to_ascii(line) for line in lines[start:]]
    return len(countries) >= 52 and countries == sorted(countries, reverse=True)


@kind("custom:word_reverse")
def word_reverse(text: str) -> bool:
    words = remove_marks(text.lower()).split()
    return "bald eagle" in " ".join(reversed(words))


@kind("custom:character_reverse")
def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


@kind("custom:sentence_alphabet")
def sentence_alphabet(text: str) -> bool:
    sentences = counting.split_sentences(text)
    bare = (each.lstrip(string.punctuation + string.whitespace) for each in sentences)
    return [each[:1].lower() for each in bare] == [*string.ascii_lowercase]


@kind("custom:european_capitals_sort")
def european_capitals_sort(text: str) -> bool:
    found = [each for part in _to_ascii(text).split(",") if (each := part.strip())]
    return found == CAPITALS.split()


@kind("custom:csv_city")
def csv_city(text: str) -> bool:
    rows = _read_table(text)
    return len(rows) == 8 and rows[0] == CITY_COLUMNS and all(len(row) == 5 for row in rows)


@kind("custom:csv_special_character")
def csv_special_character(text: str) -> bool:
    rows = _read_table(text.replace('"', '"""'))
    if not _has_header(text, PRODUCT_COLUMNS, r",[ \t]*") or len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(map(_is_special, row)):
            return True
    return False


@kind("custom:csv_quotes")
def csv_quotes(text: str) -> bool:
    rows = _read_table(text.replace('"', '"""'), "\t")
    if not _has_header(text, GRADE_COLUMNS, "\t *") or len(rows) != 4:
        return False
    fields = [field.strip() for row in rows for field in row]
    is_whole = all(len(row) == 5 for row in rows)
    return is_whole and all(field[0] == field[-1] == '"' for field in fields)


@kind("custom:date_format_list")
def date_format_list(text: str) -> bool:
    return all(map(_is_date, map(str.strip, text.split(","))))


def _read_question(part: str) -> tuple[int, int]:
    """The length of a question's text, and the number of its options."""
    lines = [line.strip() for line in part.split("\n")]
    places = [number for number, line in enumerate(lines) if OPTION.match(line)]
    asked = lines[: places[0]] if places else lines
    return len(" ".join(asked).strip()), len(places)


def _to_ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _read_table(text: str, delimiter: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(text), delimiter=delimiter))


def _has_header(text: str, columns: list[str], between: str) -> bool:
    names = between.join(rf"(?:{name}|\"{name}\")" for name in columns)
    return re.fullmatch(names, text.split("\n")[0].strip()) is not None


def _is_special(field: str) -> bool:
    r"""Whether a match of `".*[^\d\w\s].*"` is at its start."""
    line = field.split("\n")[0]
    return line.startswith('"') and SPECIAL.search(line, 1, max(line.rfind('"'), 1)) is not None


def _is_date(text: str) -> bool:
    found = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return 1769 <= year <= 1821 and month <= 12 and (not month or day <= LAST_DAYS.get(month, 31))
