"""IFEval's 25 kinds, as in the published checks but for what the README names."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

import counting
from kinds import Count, Pattern, Place, Relation, Text, Words, compare, count_matches, kind
from langdetect import PROFILES_DIRECTORY, DetectorFactory, LangDetectException
from pydantic import AfterValidator, Field

DetectorFactory.seed = 0  # otherwise langdetect is random

LANGUAGES = {path.name for path in Path(PROFILES_DIRECTORY).iterdir()}

LIKELY = 0.9999
"""Probability of English before the text is read, where English is asked for. Few words give
langdetect little evidence. It stops at 0.99999, so that a higher value would decide alone."""


def _find_language(code: str) -> str:
    """Return langdetect's code, without a region that it does not know (`pt-BR`)."""
    code = code.strip().lower().replace("_", "-")
    main = code.partition("-")[0]
    if code in LANGUAGES:
        return code
    if not any(main == known.partition("-")[0] for known in LANGUAGES):
        raise ValueError(f"langdetect does not know the language '{code}'")
    return main


Language = Annotated[Text, AfterValidator(_find_language)]
"""A language that langdetect knows, by its ISO 639-1 code."""

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
STARS = r"\s?\*\*\*\s?"


@kind("keywords:existence")
def existence(text: str, keywords: Words) -> bool:
    return all(re.search(word, text, re.IGNORECASE) for word in keywords)


@kind("keywords:frequency", "keywords:word_count_different_numbers")
def frequency(text: str, keyword: Pattern, frequency: Count, relation: Relation) -> bool:
    return compare(count_matches(keyword.strip(), text), relation, frequency)


@kind("keywords:forbidden_words")
def forbidden_words(text: str, forbidden_words: Words) -> bool:
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


@kind("keywords:letter_frequency", "letters:letter_counting2")
def letter_frequency(
    text: str,
    letter: Annotated[str, Field(min_length=1, max_length=1)],
    let_frequency: Count,
    let_relation: Relation,
) -> bool:
    return compare(text.lower().count(letter.lower()), let_relation, let_frequency)


@kind("language:response_language")
def response_language(text: str, language: Language) -> bool:
    return _is_in(text, language)


@kind("length_constraints:number_sentences", by_nltk=True)
def number_sentences(text: str, num_sentences: Count, relation: Relation) -> bool:
    import treebank

    return compare(treebank.count_sentences(text), relation, num_sentences)


@kind("length_constraints:number_paragraphs")
def number_paragraphs(text: str, num_paragraphs: Count) -> bool:
    return counting.count_parts(text, STARS) == num_paragraphs


@kind("length_constraints:number_words")
def number_words(text: str, num_words: Count, relation: Relation) -> bool:
    return compare(counting.count_words(text), relation, num_words)


@kind("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(
    text: str, num_paragraphs: Count, nth_paragraph: Place, first_word: Text
) -> bool:
    paragraphs = counting.split_paragraphs(text)
    if not nth_paragraph <= len(paragraphs) == num_paragraphs:
        return False
    return counting.begins_with(paragraphs[nth_paragraph - 1], first_word)


@kind("detectable_content:number_placeholders")
def number_placeholders(text: str, num_placeholders: Count) -> bool:
    return counting.count_placeholders(text) >= num_placeholders


@kind("detectable_content:postscript")
def postscript(text: str, postscript_marker: Pattern) -> bool:
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, marker.lower()), text.lower()) is not None


@kind("detectable_format:number_bullet_lists")
def number_bullet_lists(text: str, num_bullets: Count) -> bool:
    return counting.count_bullets(text) == num_bullets


@kind("detectable_format:constrained_response")
def constrained_response(text: str) -> bool:
    return any(option in text for option in OPTIONS)


@kind("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text: str, num_highlights: Count) -> bool:
    return counting.count_highlights(text) >= num_highlights


@kind("detectable_format:multiple_sections")
def multiple_sections(text: str, section_spliter: Pattern, num_sections: Count) -> bool:
    return len(re.split(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) > num_sections


@kind("detectable_format:json_format")
def json_format(text: str) -> bool:
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    json.loads(text.removesuffix("```").strip())
    return True


@kind("detectable_format:title")
def title(text: str) -> bool:
    return counting.has_title(text)


@kind("combination:two_responses")
def two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


@kind("combination:repeat_prompt")
def repeat_prompt(text: str, prompt_to_repeat: Text) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@kind("startend:end_checker")
def end_checker(text: str, end_phrase: Text) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@kind("startend:quotation")
def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@kind("change_case:capital_word_frequency", by_nltk=True)
def capital_word_frequency(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    import treebank

    found = sum(word.isupper() for word in treebank.tokenize(text))
    return compare(found, capital_relation, capital_frequency)


@kind("change_case:english_capital")
def english_capital(text: str) -> bool:
    return text.isupper() and _is_in(text, "en", _expect("en"))


@kind("change_case:english_lowercase")
def english_lowercase(text: str) -> bool:
    return text.islower() and _is_in(text, "en", _expect("en"))


@kind("punctuation:no_comma")
def no_comma(text: str) -> bool:
    return "," not in text


def _is_in(text: str, language: str, prior: Mapping[str, float] | None = None) -> bool:
    """Whether langdetect finds `language`; `zh` is any of its variants."""
    detector = _load_profiles().create()
    if prior:
        detector.set_prior_map(prior)
    detector.append(text.lower() if text.isupper() else text)
    try:
        found = detector.detect()
    except LangDetectException:
        return True  # as in IFEval: text without letters is in any language
    return language in (found, found.partition("-")[0])


def _expect(language: str) -> dict[str, float]:
    other = (1 - LIKELY) / (len(LANGUAGES) - 1)
    return dict.fromkeys(LANGUAGES, other) | {language: LIKELY}


@cache
def _load_profiles() -> DetectorFactory:
    factory = DetectorFactory()
    factory.load_profile(PROFILES_DIRECTORY)
    return factory
