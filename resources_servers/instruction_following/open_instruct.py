"""The kinds that Open-Instruct adds to IFEval's, as NeMo Gym's rows use them."""

import re
from itertools import pairwise

import counting
from kinds import (
    Count,
    Pattern,
    Place,
    Relation,
    Text,
    Word,
    compare,
    count_matches,
    get_only,
    kind,
)

STARS = r"\s?\*\*\*\s?"


@kind("copy:copy", "copy:copying_simple")
def copy(text: str, prompt_to_repeat: Text) -> bool:
    return _is_same(text, prompt_to_repeat)


@kind("copy:copying_multiple")
def copying_multiple(text: str, prompt_to_repeat: Text, N: Place) -> bool:
    parts = text.split("******")
    return len(parts) == N and all(_is_same(part, prompt_to_repeat) for part in parts)


@kind("new:copy_span_idx")
def copy_span_idx(text: str, prompt_to_repeat: Text, n_start: Count, n_end: Place) -> bool:
    return _is_same(text, prompt_to_repeat[n_start:n_end])


@kind("copy:repeat_phrase")
def repeat_phrase(text: str, phrase: Text, small_n: Place) -> bool:
    words = phrase.split()
    first, last = re.escape(words[0]), re.escape(words[-1])
    found: list[str] = []
    for line in text.split("\n"):
        until = line.rfind(f" {words[-1]}") + len(words[-1]) + 1  # without an end, no search for it
        found += re.findall(rf"{first} .*? {last}", line[:until])
    if len(found) != small_n:
        return False
    changes = []
    for each in map(str.split, found):
        if len(each) > len(words):
            return False
        changes.append(sum(word != wanted for word, wanted in zip(each, words, strict=False)))
    return max(changes) <= 1 and changes[-1] == 1


@kind("detectable_format:sentence_hyphens")
def sentence_hyphens(text: str) -> bool:
    wanted = counting.split_sentences(text.replace("-", " "))
    return all(a == b for a, b in zip(text.split("-"), wanted, strict=False))


@kind("detectable_format:square_brackets")
def square_brackets(text: str) -> bool:
    return all(word[0] == "[" and word[-1] == "]" for word in text.split())


@kind("detectable_format:bigram_wrapping")
def bigram_wrapping(text: str) -> bool:
    words = text.split()
    pairs = zip(words[::2], words[1::2], strict=False)
    return all(one.startswith("<<") and other.endswith(">>") for one, other in pairs)


@kind("keywords:no_adjacent_consecutive")
def no_adjacent_consecutive(text: str) -> bool:
    firsts = [word[0].lower() for word in text.split()]
    pairs = list(pairwise(firsts))
    if any(len(letter) != 1 for pair in pairs for letter in pair):
        return False
    return all(ord(after) - ord(before) != 1 for before, after in pairs)


@kind("keywords:word_once")
def word_once(text: str, keyword: Pattern) -> bool:
    return count_matches(keyword.strip(), text) == 1


@kind("keywords:exclude_word_harder")
def exclude_word_harder(text: str, keyword: Text) -> bool:
    return f" {keyword.strip()} " not in text


@kind("keywords:palindrome")
def palindrome(text: str) -> bool:
    return any(word == word[::-1] for word in text.split())


@kind("keywords:keyword_specific_position", by_nltk=True)
def keyword_specific_position(text: str, keyword: Word, n: Place, m: Place) -> bool:
    import treebank

    return treebank.tokenize(counting.split_sentences(text)[n - 1])[m - 1] == get_only(keyword)


@kind("keywords:start_end", by_nltk=True)
def start_end(text: str) -> bool:
    import treebank

    words = treebank.tokenize(text)
    return len(words) > 1 and words[0].lower() == words[-1].lower()


@kind("paragraphs:paragraphs")
def paragraphs(text: str) -> bool:
    return counting.count_parts(text, STARS) == 2


@kind("paragraphs:paragraphs2")
def paragraphs2(text: str) -> bool:
    return len(counting.split_paragraphs(text)) == 2


@kind("first_word:first_word_sent")
def first_word_sent(text: str, first_word: Word) -> bool:
    wanted = get_only(first_word)
    return all(counting.begins_with(each, wanted) for each in counting.split_sentences(text))


@kind("first_word:first_word_answer")
def first_word_answer(text: str, first_word: Text) -> bool:
    return counting.begins_with(text, first_word)


@kind("last_word:last_word_sent")
def last_word_sent(text: str, last_word: Word) -> bool:
    sentences = counting.split_sentences(text)
    return all(_last_word(each) == get_only(last_word).lower() for each in sentences)


@kind("last_word:last_word_answer")
def last_word_answer(text: str, last_word: Text) -> bool:
    return _last_word(text) == last_word.strip().lower()


@kind("punctuation:punctuation_dot")
def punctuation_dot(text: str) -> bool:
    return "." not in text


@kind("punctuation:punctuation_exclamation")
def punctuation_exclamation(text: str) -> bool:
    return "!" not in text


@kind("count:lowercase_counting")
def lowercase_counting(text: str, N: Count) -> bool:
    return len(re.findall(r"\b[a-z]+\b", text)) <= N


@kind("letters:letter_counting")
def letter_counting(text: str, N: Count, relation: Relation) -> bool:
    return compare(len(re.findall("[a-zA-Z]", text)), relation, N)


@kind("count:counting_composition", by_nltk=True)
def counting_composition(text: str, n_sent: Place, n_words: Place) -> bool:
    import treebank

    parts = re.split(STARS, text)
    for part in parts:
        sentences = counting.split_sentences(part)
        if len(sentences) != n_sent:
            return False
        if any(len(treebank.tokenize(sentence)) != n_words for sentence in sentences):
            return False
    return len(parts) == 3


@kind("count:count_unique", by_nltk=True)
def count_unique(text: str) -> bool:
    import treebank

    words = treebank.tokenize(text)
    return len(words) == len(set(words))


@kind("count:count_increment_word")
def count_increment_word(text: str, keyword1: Pattern, keyword2: Pattern) -> bool:
    return count_matches(keyword1.strip(), text) == 1 and count_matches(keyword2.strip(), text) == 2


def _is_same(text: str, wanted: str) -> bool:
    return text.strip().lower() == wanted.strip().lower()


def _last_word(text: str) -> str:
    return re.sub(r"[^\w\s]", "", text.split()[-1]).lower()
